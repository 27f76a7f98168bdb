"""Trials: every run with every method, and the fits that each of them needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from mpfm_kedro.detectors.mpfm.specification import STAGES, stage_name
from mpfm_kedro.parameters import RepairParameters
from mpfm_kedro.protocol.memory import Entry, Memory
from mpfm_kedro.protocol.methods import Method, configured_methods, from_json, to_json
from mpfm_kedro.protocol.runs import records

if TYPE_CHECKING:
    from mpfm_kedro.detectors.base import Artefact

SEPARATOR = " + "  # between the keys of several backbones


@dataclass(frozen=True)
class Trial:
    """One method on one run."""

    run: dict[str, Any]  # its row of the run table
    method: Method
    fits: dict[str, Entry]  # where its fits are, by name
    order: tuple[int, int] = (0, 0)  # number of the run and of the method in it

    @property
    def name(self) -> dict[str, str]:
        """What identifies it in tables."""
        return {"setting": self.run["setting"], "run": self.run["run"], "method": self.method.name}

    @property
    def tested(self) -> list[str]:
        """The test samples, normals first."""
        return [*self.run["test_normals"], *self.run["test_anomalies"]]

    def learned_run(self, supervised: bool) -> dict[str, Any]:
        """The run as a fit reads it, with its known anomalies or without."""
        return self.run if supervised else self.run | {"known_anomalies": []}


@dataclass(frozen=True)
class Trials:
    """A table with one row per trial and the keys of its fits, and the memory that has them."""

    table: pd.DataFrame
    memory: Memory

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials)

    @cached_property
    def _trials(self) -> list[Trial]:
        return read_trials(self.table)

    def artefacts(self, trial: Trial) -> dict[str, Artefact]:
        """All fits of a trial by name."""
        return {name: self.memory.load(entry) for name, entry in trial.fits.items()}


def list_trials(runs: pd.DataFrame) -> list[Trial]:
    """Every run with every method."""
    return [
        Trial({name: value for name, value in run.items() if name != "methods"}, method, {}, (number, rank))
        for number, run in enumerate(records(runs))
        for rank, method in enumerate(from_json(run["methods"]))
    ]


def plan_trials(runs: pd.DataFrame, repairs: RepairParameters) -> list[Trial]:
    """Every run with its variants of MPFM; without known anomalies, with those that need none."""
    configured = (
        replace(trial, method=method)
        for trial in list_trials(runs)
        for method in configured_methods([trial.method], repairs)
    )
    return [
        trial
        for trial in configured
        if trial.method.mpfm and (trial.run["known_anomalies"] or not trial.method.trained)
    ]


def to_table(trials: list[Trial]) -> pd.DataFrame:
    """Trials as a table; what a method changes, and the keys of its fits, are texts."""
    rows = []
    for trial in trials:
        keys = {stage: SEPARATOR.join(e.key for e in trial.fits.values() if e.stage == stage) for stage in STAGES}
        named = {"method": trial.method.name, "kind": trial.method.kind, "changes": to_json([trial.method])}
        rows.append(trial.run | named | keys | {"order": list(trial.order)})
    return pd.DataFrame(rows)


def read_trials(table: pd.DataFrame) -> list[Trial]:
    """The trials of a table."""
    trials = []
    for row in records(table):
        (method,) = from_json(row.pop("changes"))
        fits = {}
        for stage in STAGES:
            for backbone, key in enumerate(filter(None, row.pop(stage).split(SEPARATOR))):
                fits[stage_name(stage, backbone)] = Entry(stage, key)
        order = row.pop("order")
        trials.append(Trial({n: row[n] for n in row if n not in ("method", "kind")}, method, fits, tuple(order)))
    return trials
