"""Fits: what the trials of a study need, each distinct one computed once and kept in the memory.

A node only plans them: what is to be fitted, from which data and parameters, under which key. The dataset that the plan
is saved to computes what its memory lacks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.compute import concurrent_tasks, map_tasks, memory_limit, torch_device
from mpfm_kedro.detectors.mpfm.specification import STAGES, stage_name
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.protocol import data
from mpfm_kedro.protocol.data import learned_digest, training_data
from mpfm_kedro.protocol.memory import Entry, Memory
from mpfm_kedro.protocol.methods import Method
from mpfm_kedro.protocol.trials import Trial, to_table
from mpfm_kedro.provenance import key_digest, library_versions

PROCESS_BYTES, POOLED_COPIES, SQUARE_COPIES = 800_000_000, 20, 3  # of a task's memory, as measured on ELPV


@dataclass(frozen=True)
class Task(ABC):
    """Something that is computed once and kept."""

    entry: Entry
    run: dict[str, Any]  # what it learns from
    features: Features
    device: str
    memory: Memory = field(default=Memory(Path()))  # keeps it, and has what it needs
    bytes: int = 0  # of memory, which it may use

    @abstractmethod
    def work(self) -> None:
        """Compute and keep it."""

    @abstractmethod
    def need(self) -> int:
        """Bytes of memory that it takes, about."""

    def epochs(self) -> tuple[int, int]:
        """How many epochs are done, and how many there will be; (0, 0) without epochs."""
        return 0, 0


@dataclass(frozen=True)
class Plan:
    """Tasks, each distinct one of which is done once, and the table that is made of their results."""

    label: str
    tasks: Sequence[Task]
    compute: ComputeParameters
    tabulate: Callable[[Memory], pd.DataFrame]

    def run(self, memory: Memory) -> pd.DataFrame:
        """Compute what the memory lacks; returns the table."""
        distinct = {task.entry: replace(task, memory=memory) for task in self.tasks}
        missing = [task for task in distinct.values() if not memory.has(task.entry)]
        if missing:
            need = max(task.need() for task in missing)
            at_once = concurrent_tasks(self.compute, len(missing), need)
            share = memory_limit(self.compute) // at_once if self.compute.dask_scheduler is None else need
            tasks = [replace(task, bytes=share) for task in missing]
            work, epochs = methodcaller("work"), methodcaller("epochs")  # each task has its own
            map_tasks(work, tasks, self.label, self.compute, len(distinct), need, epochs)
        return self.tabulate(memory)


@dataclass(frozen=True, kw_only=True)
class FitTask(Task):
    """One fit of MPFM, from parameters and upstream fits."""

    parameters: dict[str, Any]
    upstream: dict[str, Entry]

    def __str__(self) -> str:
        return f"{self.entry.stage} of {self.run['dataset']}, {self.run['run']}"

    def work(self) -> None:
        """Fit, from the checkpoint if there is one, and keep the result."""
        import torch  # slow to import

        from mpfm_kedro.detectors.base import Context
        from mpfm_kedro.detectors.mpfm import stages

        functions = {
            "prototypes": stages.fit_prototypes,
            "training": stages.fit_modules,
            "calibration": stages.fit_calibration,
        }
        checkpoint = self.memory.checkpoint(self.entry)
        context = Context(torch_device(self.device), self.bytes, checkpoint)
        upstream = {name: self.memory.load(entry) for name, entry in self.upstream.items()}
        learned = training_data(self.run, self.features)
        with torch.random.fork_rng(devices=[]):
            fitted = functions[self.entry.stage](learned, upstream, self.parameters, self.run["seed"], context)
        fitted.details["parameters"] = self.parameters
        self.memory.save(self.entry, fitted, checkpoint.seconds)
        checkpoint.file.unlink(missing_ok=True)

    def need(self) -> int:
        """The process, copies of pooled statistics, square matrices."""
        sizes = [spec.pooled_size for spec in self.features.specs]
        rows = self.features.index["sample_id"].isin({*self.run["train_normals"], *self.run["known_anomalies"]}).sum()
        return PROCESS_BYTES + POOLED_COPIES * int(rows) * 4 * sum(sizes) + SQUARE_COPIES * 8 * max(sizes) ** 2

    def epochs(self) -> tuple[int, int]:
        """Those of the checkpoint and of the parameters."""
        planned = int(self.parameters.get("epochs", 0))
        return self.memory.checkpoint(self.entry).epoch if planned else 0, planned


def plan_stage(
    stage: str,
    trials: Sequence[Trial],
    features: Features,
    compute: ComputeParameters,
    parameters: Callable[[Method], dict[str, Any] | None],
) -> Plan:
    """Plan one stage of MPFM for all trials, which have the fits of the stages before.

    Trials that share a fit have equal tasks. ``parameters`` are None for a method that does without the stage.
    """
    digest = cache(partial(learned_digest, features=features))
    planned, tasks = [], []
    for trial in trials:
        fits, chosen = dict(trial.fits), parameters(trial.method)
        for name, more, upstream in _fits_of(stage, trial.fits, len(features.specs)) if chosen is not None else []:
            values = (chosen or {}) | more
            # a fit that reads no anomaly is shared by runs with other known ones
            run = trial.learned_run(stage == "training" or "training" in upstream)
            key = key_digest(
                {
                    "stage": stage,
                    "parameters": values,
                    "seed": run["seed"],
                    "features": features.spec_digest,
                    "data": digest((*run["train_normals"], *run["known_anomalies"]), run["by_item"], False),
                    "versions": [STAGES[stage], data.VERSION],
                    "libraries": library_versions(),
                    "upstream": [entry.key for entry in upstream.values()],
                }
            )
            fits[name] = Entry(stage, key)
            task = FitTask(fits[name], run, features, compute.device, parameters=values, upstream=upstream)
            tasks.append(task)
        planned.append(replace(trial, fits=fits))
    return Plan(stage.capitalize(), tasks, compute, lambda _: to_table(planned))


def _fits_of(
    stage: str, fits: dict[str, Entry], n_backbones: int
) -> list[tuple[str, dict[str, int], dict[str, Entry]]]:
    """Name, further parameters and upstream fits of each fit of a stage."""
    if stage == "calibration":
        return [(stage, {"n_backbones": n_backbones}, fits)]
    before = [stage_name("prototypes", backbone) for backbone in range(n_backbones)]
    return [
        (stage_name(stage, backbone), {"backbone": backbone}, {name: fits[name]} if stage == "training" else {})
        for backbone, name in enumerate(before)
    ]
