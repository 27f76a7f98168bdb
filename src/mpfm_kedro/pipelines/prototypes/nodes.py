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
from mpfm_kedro.provenance import METHOD, code_digest, code_revision

SHAPE = [
    "hidden",
    "transport_steps",
    "top_share",
    "held_back_share",
    "scores",
]  # what an initial model takes of the training
REPAIRS = ["transport_start", "fusion"]


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
    tasks = {
        run["run"]: plan_initialisation(run, features, cache, prototypes, repairs, training) for run in records(runs)
    }
    left = {task.entry.path: task for task in tasks.values() if not task.entry.exists()}
    if left:
        map_runs(initialise_run, list(left.values()), "Prototypes", compute)
    return {run: task.entry for run, task in tasks.items()}


def plan_initialisation(
    run: dict[str, Any],
    features: Features,
    cache: RunCache,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
) -> Task:
    """The initialisation of one run, and where it is kept."""
    from mpfm_kedro.pipelines.training.run_data import content_key

    key = content_key(run, features, with_anomalies=False) | {
        "code": code_digest(METHOD),
        "prototypes": prototypes.model_dump(),
        "repairs": [getattr(repairs, name) for name in REPAIRS],
        "shape": [getattr(training, name) for name in SHAPE],
    }
    return Task(run, features, cache.entry(key, "initial"), prototypes, repairs, training)


def initialise_run(task: Task) -> None:
    """Fit one initial model and store it."""
    from mpfm_kedro.model.artefact import pack
    from mpfm_kedro.model.initialisation import build, initialise
    from mpfm_kedro.pipelines.training.run_data import content_digest, run_data
    from mpfm_kedro.pipelines.training.steps import calibrate_model, kept_for_training

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
    extra = kept_for_training(init, model, data)
    details = {
        "modes_tried": init.tried,
        "seconds": time.monotonic() - began,
        "seed": task.run["seed"],
        "data": content_digest(task.run, task.features, with_anomalies=False),
        "features": task.features.store.spec.digest,
        "weights": task.features.store.spec.weights_digest,
        "revision": code_revision(),
        "prototypes": task.prototypes.model_dump(),
        "training": {name: getattr(training, name) for name in SHAPE},
        "repairs": {name: getattr(task.repairs, name) for name in REPAIRS},
    }
    task.entry.save(pack(model, calibrate_model(model, data, task.repairs, training.scores), extra, details))


def tabulate_modes(initial_models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """How the number of modes was chosen: one row a run and number tried."""
    rows = []
    for run, artefact in initial_models.items():
        rows += [{"run": run} | tried for tried in artefact.details()["modes_tried"]]
    return pd.DataFrame(rows)
