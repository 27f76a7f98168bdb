"""Modes of the normals and K-means++ prototypes: the model before training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mpfm_kedro.compute import map_runs
from mpfm_kedro.io.artefacts import ArtefactFile, RunCache
from mpfm_kedro.io.feature_store import Features
from mpfm_kedro.parameters import (
    ComputeParameters,
    PrototypeParameters,
    RepairParameters,
    TrainingParameters,
)
from mpfm_kedro.pipelines.runs.nodes import records
from mpfm_kedro.provenance import code_digest, code_revision


@dataclass(frozen=True)
class Task:
    """One initialisation."""

    run: dict[str, Any]
    features: Features
    entry: ArtefactFile
    prototypes: PrototypeParameters
    repairs: RepairParameters
    training: TrainingParameters


def initialise_prototypes(
    runs: pd.DataFrame,
    features: Features,
    cache: RunCache,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    compute: ComputeParameters,
) -> dict[str, ArtefactFile]:
    """The initial model of every run: standardiser, modes, prototypes and the flow's closed-form start.

    It knows no anomaly, so runs that differ only in these share it.
    """
    from mpfm_kedro.pipelines.training.run_data import content_key

    entries: dict[str, ArtefactFile] = {}
    tasks: dict[str, Task] = {}
    for run in records(runs):
        key = content_key(run, features, with_anomalies=False) | {
            "code": code_digest(),
            "prototypes": prototypes.model_dump(),
            "repairs": [repairs.transport_start, repairs.fusion],
            "shape": [
                training.hidden,
                training.transport_steps,
                training.top_share,
                training.held_back_share,
            ],
        }
        entry = entries[run["run"]] = cache.entry(key, "initial")
        if not entry.exists():
            tasks[entry.path.name] = Task(run, features, entry, prototypes, repairs, training)
    if tasks:
        map_runs(initialise_run, list(tasks.values()), "Prototypes", compute)
    return entries


def initialise_run(task: Task) -> None:
    """Fit one initial model and store it."""
    import torch

    from mpfm_kedro.model.artefact import pack
    from mpfm_kedro.model.initialisation import build, initialise
    from mpfm_kedro.pipelines.training.run_data import run_data
    from mpfm_kedro.pipelines.training.steps import calibrate_model

    began = time.monotonic()
    data = run_data(task.run, task.features, task.training.held_back_share)
    printed_start = task.repairs.transport_start == "printed"
    init = initialise(
        data.normals,
        data.held_back,
        task.prototypes.n_prototypes,
        task.prototypes.max_modes,
        task.prototypes.min_mode_size,
        task.run["seed"],
        printed_start,
    )
    training = task.training
    model = build(init, data.normals, training.hidden, training.transport_steps, training.top_share, task.run["seed"])
    extra = {
        "labels": torch.from_numpy(init.fitted.labels),
        "shrinkage": torch.from_numpy(init.fitted.shrinkage),
    }
    details = {"modes_tried": init.tried, "seconds": time.monotonic() - began, "revision": code_revision()}
    task.entry.save(pack(model, calibrate_model(model, data, task.repairs), extra, details))


def tabulate_modes(initial_models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """How the number of modes was chosen: one row a run and number tried."""
    rows = []
    for run, artefact in initial_models.items():
        rows += [{"run": run} | tried for tried in artefact.details()["modes_tried"]]
    return pd.DataFrame(rows)
