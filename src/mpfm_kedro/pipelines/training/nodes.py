"""Training of every run, from its initial model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from mpfm_kedro.compute import map_runs
from mpfm_kedro.io.artefacts import ArtefactFile, RunCache
from mpfm_kedro.io.feature_store import Features
from mpfm_kedro.parameters import ComputeParameters, RepairParameters, TrainingParameters
from mpfm_kedro.pipelines.runs.nodes import records
from mpfm_kedro.provenance import METHOD, code_digest, code_revision

if TYPE_CHECKING:
    from mpfm_kedro.model.artefact import Artefact

SAMPLED, SAMPLING_STEPS = 500, 8
DESCRIPTION = ["run", "dataset", "category", "setting", "known_class", "n_anomalies", "seed"]


@dataclass(frozen=True)
class Task:
    """One training."""

    run: dict[str, Any]
    features: Features
    initial: ArtefactFile
    entry: ArtefactFile
    checkpoint: ArtefactFile
    training: TrainingParameters
    repairs: RepairParameters
    device: str


def train_models(
    runs: pd.DataFrame,
    features: Features,
    initial_models: dict[str, ArtefactFile],
    cache: RunCache,
    device: str,
    training: TrainingParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> dict[str, ArtefactFile]:
    """The trained model of every run; runs that were trained before are taken from the cache."""
    tasks = {
        run["run"]: plan_training(run, features, cache, initial_models[run["run"]], repairs, training, device)
        for run in records(runs)
    }
    left = [task for task in tasks.values() if not task.entry.exists()]
    if left:
        map_runs(train_run, left, "Training", compute, device)
    return {run: task.entry for run, task in tasks.items()}


def plan_training(
    run: dict[str, Any],
    features: Features,
    cache: RunCache,
    initial: ArtefactFile,
    repairs: RepairParameters,
    training: TrainingParameters,
    device: str,
) -> Task:
    """The training of one run from its initial model, and where model and checkpoints are kept."""
    from mpfm_kedro.pipelines.training.run_data import content_key

    key = content_key(run, features, with_anomalies=True) | {
        "code": code_digest(METHOD),
        "initial": initial.digest(),
        "training": training.model_dump(),
        "repairs": repairs.model_dump(),
    }
    model, checkpoint = (cache.entry(key, kind) for kind in ("model", "checkpoint"))
    return Task(run, features, initial, model, checkpoint, training, repairs, device)


def train_run(task: Task) -> None:
    """Train one run and store its model."""
    task.entry.save(train(task))
    task.checkpoint.delete()


def train(task: Task) -> Artefact:
    """Train one run from its last checkpoint and calibrate it."""
    import torch

    from mpfm_kedro.compute import torch_device
    from mpfm_kedro.model import trainer
    from mpfm_kedro.model.artefact import pack, unpack
    from mpfm_kedro.model.checkpoint import load_state, save_state
    from mpfm_kedro.model.trainer import Schedule, State
    from mpfm_kedro.pipelines.training.run_data import content_digest, run_data
    from mpfm_kedro.pipelines.training.steps import calibrate_model, objective_options, training_set

    began = time.monotonic()
    device = torch_device(task.device)
    initial = task.initial.load()
    model = unpack(initial).to(device)
    data = run_data(task.run, task.features, task.training.held_back_share)
    state = load_state(task.checkpoint.load()) if task.checkpoint.exists() else None
    spent = task.checkpoint.details()["seconds"] if state else 0.0

    def keep(state: State) -> None:
        task.checkpoint.save(save_state(state, {"seconds": spent + time.monotonic() - began}))

    with torch.random.fork_rng(devices=[]):
        history = trainer.train(
            model,
            training_set(model, initial, data, task.run["seed"], task.repairs),
            Schedule(**{name: getattr(task.training, name) for name in Schedule.__dataclass_fields__}),
            objective_options(task.training, task.repairs, task.run["n_anomalies"]),
            task.run["seed"],
            state,
            keep,
        )
    details = {
        "run": {name: task.run[name] for name in DESCRIPTION},
        "history": history,
        "seconds": spent + time.monotonic() - began,
        "initial": task.initial.digest(),
        "data": content_digest(task.run, task.features, with_anomalies=True),
        "features": task.features.store.spec.digest,
        "weights": task.features.store.spec.weights_digest,
        "revision": code_revision(),
        "prototypes": initial.details.get("prototypes"),
        "training": task.training.model_dump(),
        "repairs": task.repairs.model_dump(),
    }
    return pack(model, calibrate_model(model, data, task.repairs, task.training.scores), {}, details)


def tabulate_history(models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """All loss terms, assignment entropy and used prototypes by run and epoch."""
    rows = [{"run": run} | row for run, artefact in models.items() for row in artefact.details()["history"]]
    return pd.DataFrame(rows, columns=None if rows else ["run", "epoch"])


def sample_features(runs: pd.DataFrame, features: Features, models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """Features of normals drawn by the first run's model beside real ones, along the real ones' two main directions."""
    import numpy as np
    import torch

    from mpfm_kedro.model.artefact import unpack
    from mpfm_kedro.model.reverse import sample_normals

    run = records(runs)[0]
    model = unpack(models[run["run"]].load())
    rows = features.rows(run["train_normals"])[:SAMPLED]
    with torch.inference_mode():
        real = model.z(torch.from_numpy(features.store.pooled[rows]))
        generator = torch.Generator().manual_seed(run["seed"])
        drawn = sample_normals(model.velocity, model.prototypes, len(real), SAMPLING_STEPS, 1.0, generator)
        _, _, directions = torch.pca_lowrank(real, q=2, niter=4)
        places = [(z - real.mean(0)) @ directions for z in (real, drawn)]
    table = pd.DataFrame(torch.cat(places).numpy(), columns=["first", "second"])
    return table.assign(kind=np.repeat(["real", "sampled"], len(real)))
