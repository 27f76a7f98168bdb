"""MPFM on small made features: its data, its specification with small numbers, and a fit of all pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load, save

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm import stages
from mpfm_kedro.detectors.mpfm.specification import (
    calibration_parameters,
    prototype_parameters,
    stage_name,
    training_parameters,
)
from mpfm_kedro.parameters import PrototypeParameters, RepairParameters, TrainingParameters

CPU = torch.device("cpu")
BASE = Path(__file__).parents[1] / "conf/base/parameters_model.yml"
GROUPS = {"prototypes": PrototypeParameters, "repairs": RepairParameters, "training": TrainingParameters}
SMALL = {
    **{"n_prototypes": 4, "n_patch_prototypes": 20, "min_mode_size": 20, "folds": 3, "hidden": 8, "top_share": 0.2},
    **{"epochs": 2, "iterations_per_epoch": 4, "normals_per_batch": 12, "anomalies_per_batch": 6},
    **{"head_top_shares": [0.2, 0.1], "head_members": 1, "learning_rate": 2e-3},
}
FUNCTIONS = {
    "prototypes": stages.fit_prototypes,
    "training": stages.fit_modules,
    "calibration": stages.fit_calibration,
}
PRINTED = dict.fromkeys(RepairParameters.model_fields, "printed")


def groups(**changes: Any) -> dict[str, Any]:
    """The groups of parameters that MPFM has: the defaults, made small, with changes by name of a parameter."""
    base, wanted = yaml.safe_load(BASE.read_text(encoding="utf-8")), SMALL | changes
    return {
        name: group(**values | {key: wanted[key] for key in values if key in wanted})
        for name, (group, values) in {name: (group, base[name]) for name, group in GROUPS.items()}.items()
    }


def specify(
    trained: bool = True, step_0: bool = False, n_backbones: int = 1, **changes: Any
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Stage and parameters of each fit of small MPFM, with changes by name of a parameter."""
    own = groups(**changes)
    backbones = [{"backbone": number} for number in range(n_backbones)]
    first, second = prototype_parameters(own["prototypes"], own["repairs"]), None
    if trained:
        second = training_parameters(own["training"], own["repairs"])
    last = calibration_parameters(own["training"], own["repairs"], step_0) | {"n_backbones": n_backbones}
    fits = {stage_name("prototypes", n): ("prototypes", first | one) for n, one in enumerate(backbones)}
    if second is not None:
        fits |= {stage_name("training", n): ("training", second | one) for n, one in enumerate(backbones)}
    return fits | {"calibration": ("calibration", last)}


def through_bytes(artefact: Artefact) -> Artefact:
    """What is read again of an artefact that was stored."""
    tensors = {name: value.contiguous() for name, value in artefact.tensors.items()}
    return Artefact({n: v.clone() for n, v in load(save(tensors)).items()}, json.loads(json.dumps(artefact.details)))


class Memory:
    """A checkpoint in memory."""

    def __init__(self, states: Any = ()) -> None:
        self.states = list(states)

    def load(self) -> Artefact | None:
        return self.states[-1] if self.states else None

    def save(self, state: Artefact) -> None:
        assert all(value.device.type == "cpu" for value in state.tensors.values())
        self.states.append(through_bytes(state))


def fit(
    specification: dict[str, tuple[str, dict[str, Any]]],
    data: TrainingData,
    seed: int = 0,
    checkpoint: Memory | None = None,
    device: torch.device = CPU,
    memory: int = 1 << 30,
) -> dict[str, Artefact]:
    """All fits, each from what is stored of the ones before, and each with the anomalies that it may see."""
    unsupervised = replace(data, anomalies=data.anomalies.take(np.arange(0)))
    trained = "training" in specification
    fits: dict[str, Artefact] = {}
    for name, (stage, parameters) in specification.items():
        context = Context(device, memory, checkpoint if name == "training" else None)
        learned = data if trained and stage != "prototypes" else unsupervised
        fits[name] = through_bytes(FUNCTIONS[stage](learned, dict(fits), parameters, seed, context))
    return fits


def make_rows(pooled: np.ndarray, spot: float = 0.0, seed: int = 0, source: Any = None) -> FeatureRows:
    """Stored features of images: pooled statistics as given, maps random with a bright spot in the first channel."""
    rng = np.random.default_rng(seed)
    n = len(pooled)
    maps = rng.normal(size=(n + 3, 4, 4, 4))
    rows = rng.permutation(n + 3)[:n]
    maps[rows, 0, 1, 2] += spot
    return FeatureRows(
        np.asarray(pooled, np.float32),
        maps.astype(np.float16),
        rows,
        np.arange(n) if source is None else np.asarray(source),
    )


def make_data(
    n: int = 60, n_known: int = 3, views: int = 2, d: int = 6, seed: int = 0
) -> tuple[TrainingData, FeatureRows, FeatureRows]:
    """Training data of normals in two groups, and new normals and anomalies, 40 each."""
    rng = np.random.default_rng(seed)

    def normals(size: int) -> np.ndarray:
        return rng.normal(size=(size, d)) * np.geomspace(1, 0.2, d) + 4 * (np.arange(size) % 2)[:, None]

    known = np.tile(normals(n_known) + 1, (views, 1)) + 0.1 * rng.normal(size=(views * n_known, d))
    pooled = normals(n)
    data = TrainingData(
        make_rows(pooled, seed=seed + 1),
        make_rows(pooled[:0]),
        make_rows(known, spot=6.0, seed=seed + 3, source=np.tile(np.arange(n_known), views)),
    )
    return data, make_rows(normals(40), seed=seed + 6), make_rows(normals(40) + 1, spot=6.0, seed=seed + 7)
