"""Scores of every test sample by every model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from mpfm_kedro.backbones.views import ORIGINAL
from mpfm_kedro.compute import map_runs
from mpfm_kedro.io.artefacts import ArtefactFile
from mpfm_kedro.io.feature_store import Features
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.pipelines.runs.nodes import records

TRAINED, UNTRAINED = "MPFM", "MPFM, 0 iterations"
PART_COLUMNS = ["score_g", "score_a", "score_r", "score_n"]


@dataclass(frozen=True)
class Task:
    """The test side of one run, and its models by method."""

    run: dict[str, Any]
    features: Features
    models: dict[str, ArtefactFile]
    device: str


def score_samples(
    runs: pd.DataFrame,
    features: Features,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
    device: str,
    compute: ComputeParameters,
) -> pd.DataFrame:
    """One row a run, method and test sample: fused score and the four parts it is made of."""
    tasks = []
    for run in records(runs):
        name = run["run"]
        tasks.append(Task(run, features, {TRAINED: models[name], UNTRAINED: initial_models[name]}, device))
    tables = map_runs(score_run, tasks, "Scoring", compute, device)
    return pd.concat(tables, ignore_index=True)


def score_run(task: Task) -> pd.DataFrame:
    """Scores of one run's test samples."""
    import numpy as np

    from mpfm_kedro.compute import torch_device
    from mpfm_kedro.model.artefact import unpack, unpack_calibration
    from mpfm_kedro.pipelines.training.run_data import select
    from mpfm_kedro.pipelines.training.steps import score_rows

    normals, anomalies = list(task.run["test_normals"]), list(task.run["test_anomalies"])
    rows = select(task.features, np.array(normals + anomalies), [ORIGINAL])
    tables = []
    for method, file in task.models.items():
        artefact = file.load()
        parts, mode = score_rows(unpack(artefact).to(torch_device(task.device)), rows)
        table = pd.DataFrame(parts, columns=PART_COLUMNS)
        table.insert(0, "score", unpack_calibration(artefact).fuse(parts, mode))
        table.insert(0, "label", [0] * len(normals) + [1] * len(anomalies))
        table.insert(0, "sample", normals + anomalies)
        table.insert(0, "method", method)
        table.insert(0, "run", task.run["run"])
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
