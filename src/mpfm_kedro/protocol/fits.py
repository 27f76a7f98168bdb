"""Fits: what the trials of a study need, each distinct one computed once and kept in the memory.

A node only plans them: what is to be fitted, from which data and parameters, under which key. The dataset that the plan
is saved to computes what its memory lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
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
LABELS = {"prototypes": "Prototypes", "training": "Training", "calibration": "Calibration"}


@dataclass(frozen=True)
class FitTask:
    """One fit: from which data, parameters and upstream fits, and where it is kept."""

    entry: Entry
    run: dict[str, Any]
    parameters: dict[str, Any]
    upstream: dict[str, Entry]
    features: Features
    device: str
    memory: Memory | None = None
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.entry.stage} of {self.run['dataset']}, {self.run['run']}"


@dataclass(frozen=True)
class FitPlan:
    """The fits of one stage, and the trials that they belong to."""

    stage: str
    trials: list[Trial]
    tasks: list[FitTask]
    compute: ComputeParameters

    def run(self, memory: Memory) -> pd.DataFrame:
        """Fit what the memory lacks; the table of trials with the keys of this stage."""
        distinct = {task.entry: replace(task, memory=memory) for task in self.tasks}
        missing = [task for task in distinct.values() if not memory.has(task.entry)]
        if missing:
            need = max(task_bytes(task) for task in missing)
            at_once = concurrent_tasks(self.compute, self.compute.device, len(missing), need)
            share = memory_limit(self.compute) // at_once if self.compute.dask_scheduler is None else need
            tasks, label = [replace(task, bytes=share) for task in missing], LABELS[self.stage]
            map_tasks(fit, tasks, label, self.compute, self.compute.device, len(distinct), need, task_epochs)
        return to_table(self.trials)


def plan_stage(
    stage: str,
    trials: Sequence[Trial],
    features: Features,
    compute: ComputeParameters,
    parameters: Callable[[Method], dict[str, Any] | None],
) -> FitPlan:
    """Plan one stage of MPFM for all trials; trials that share a fit have equal tasks.

    Args:
        stage: prototypes and training have a fit for each backbone, calibration has one.
        trials: with the fits of the stages before.
        features: of all samples.
        compute: where fits run.
        parameters: of the stage for a method; None where the method does without the stage.
    """
    describe = cache(partial(learned_digest, features=features))
    n_backbones = len(features.specs)
    planned, tasks = [], []
    for trial in trials:
        fits, own = dict(trial.fits), parameters(trial.method)
        if own is not None and stage == "calibration":
            task = _plan_fit(trial, stage, own | {"n_backbones": n_backbones}, trial.fits, features, compute, describe)
            tasks.append(task)
            fits[stage] = task.entry
        elif own is not None:
            for backbone in range(n_backbones):
                before = stage_name("prototypes", backbone)
                upstream = {before: trial.fits[before]} if stage == "training" else {}
                own = own | {"backbone": backbone}
                tasks.append(_plan_fit(trial, stage, own, upstream, features, compute, describe))
                fits[stage_name(stage, backbone)] = tasks[-1].entry
        planned.append(replace(trial, fits=fits))
    return FitPlan(stage, planned, tasks, compute)


def _plan_fit(
    trial: Trial,
    stage: str,
    parameters: dict[str, Any],
    upstream: dict[str, Entry],
    features: Features,
    compute: ComputeParameters,
    describe: Callable[[tuple[str, ...], bool], str],
) -> FitTask:
    """One fit of a trial; one that reads no anomaly is shared by runs with other known anomalies."""
    supervised = stage == "training" or "training" in upstream
    run = trial.run if supervised else trial.run | {"known_anomalies": []}
    key = key_digest(
        {
            "stage": stage,
            "parameters": parameters,
            "seed": run["seed"],
            "features": features.spec_digest,
            "data": describe((*run["train_normals"], *run["known_anomalies"]), False),
            "versions": [STAGES[stage], data.VERSION],
            "libraries": library_versions(),
            "upstream": [entry.key for entry in upstream.values()],
        }
    )
    return FitTask(Entry(stage, key), run, parameters, dict(upstream), features, compute.device)


def fit(task: FitTask) -> None:
    """Fit, from the checkpoint if there is one, and keep the result; the work of a worker."""
    import torch  # slow to import

    from mpfm_kedro.detectors.base import Context
    from mpfm_kedro.detectors.mpfm import stages

    assert task.memory is not None
    functions = {
        "prototypes": stages.fit_prototypes,
        "training": stages.fit_modules,
        "calibration": stages.fit_calibration,
    }
    checkpoint = task.memory.checkpoint(task.entry)
    upstream = {name: task.memory.load(entry) for name, entry in task.upstream.items()}
    context = Context(torch_device(task.device), task.bytes, checkpoint)
    with torch.random.fork_rng(devices=[]):
        fitted = functions[task.entry.stage](
            training_data(task.run, task.features), upstream, task.parameters, task.run["seed"], context
        )
    fitted.details["parameters"] = task.parameters
    task.memory.save(task.entry, fitted, checkpoint.seconds)
    checkpoint.file.unlink(missing_ok=True)


def task_bytes(task: FitTask) -> int:
    """Memory that a fit takes, about: the process, copies of pooled statistics, square matrices."""
    sizes = [spec.pooled_size for spec in task.features.specs]
    rows = task.features.index["sample_id"].isin({*task.run["train_normals"], *task.run["known_anomalies"]}).sum()
    return PROCESS_BYTES + POOLED_COPIES * int(rows) * 4 * sum(sizes) + SQUARE_COPIES * 8 * max(sizes) ** 2


def task_epochs(task: FitTask) -> tuple[int, int]:
    """How many epochs of a fit are done, by its checkpoint, and how many there will be; (0, 0) without epochs."""
    planned = int(task.parameters.get("epochs", 0))
    if not planned or task.memory is None:
        return 0, planned
    return task.memory.checkpoint(task.entry).epoch, planned
