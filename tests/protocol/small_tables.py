"""A small sample table, made features, the project's parameters, small fits of MPFM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.config import OmegaConfigLoader

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEY, FeatureSpec, FeatureStore, row_keys
from mpfm_kedro.parameter_checks import check_parameters, complete
from mpfm_kedro.parameters import ComputeParameters, Parameters, ProtocolParameters
from mpfm_kedro.pipelines.features import plan_views
from mpfm_kedro.pipelines.mpfm import calibrate_scores, initialise_prototypes, train_mpfm
from mpfm_kedro.protocol.memory import Memory
from mpfm_kedro.protocol.trials import Trial, Trials, read_trials

SPEC = FeatureSpec("resnet18", "digest", 64, ("layer4",), ("layer4",), ("mean",), 2, (1, 1, 1))
COMPUTE = ComputeParameters(processes=1, dask_scheduler=None, device="cpu")
CELLS, CELL, CHANNELS = 6, 8, 4  # of position maps, and of the pixels of a cell
MEMORY = Memory(Path("nowhere"))  # for plans alone
CONF = str(Path(__file__).parents[2] / "conf")


def project_parameters() -> Parameters:
    """The parameters of conf/base."""
    return check_parameters(complete(OmegaConfigLoader(CONF, base_env="base", default_run_env="base")["parameters"]))


def protocol(n_anomalies: int | list[int] = 10, n_seeds: int = 1, **changes: Any) -> ProtocolParameters:
    """Parameters of the run table."""
    values = {"known_class": "all", "n_anomalies": n_anomalies, "n_seeds": n_seeds, "first_seed": 0}
    return ProtocolParameters(**(values | {"split_by_item": False} | changes))


def sample_table(classes: dict[str, int], n_train: int = 6, n_test: int = 2, category: str = "") -> pd.DataFrame:
    """Normals of both splits, and anomalies of some classes."""
    rows = [(f"good/{i:03}", "", "train", 0) for i in range(n_train)]
    rows += [(f"good/t{i:03}", "", "test", 0) for i in range(n_test)]
    rows += [(f"{name}/{i:03}", name, "anomaly", 1) for name, number in classes.items() for i in range(number)]
    samples = pd.DataFrame(rows, columns=["sample_id", "defect_class", "split", "label"])
    samples["sample_id"] = category + samples["sample_id"]
    samples = samples.assign(dataset="synthetic", category=category, problem="", crop="", pixel_range="", mask_path="")
    names = samples["sample_id"]
    return samples.assign(path=names, item=names, content_hash="hash of " + names, width=64, height=64)


def fake_features(samples: pd.DataFrame, folder: Path, order: int = 0, **changes: Any) -> Features:
    """A store whose rows, in some order of work, hold their own numbers."""
    chosen = {"cutmix_views": 2, "anomaly_views": ["hflip", "rot180"]} | changes
    views = plan_views(samples, SPEC.image_size, project_parameters().features.model_copy(update=chosen))
    keys = views[KEY].agg("|".join, axis=1)
    worked = np.random.default_rng(order).permutation(keys.unique())
    rows = np.arange(len(worked))
    with FeatureStore(folder).open(SPEC).writing() as writer:
        writer.append(list(worked), np.stack([rows, -rows], 1), rows[:, None, None, None] % 2000)
    store = FeatureStore(folder).open(SPEC)
    return Features(views[["sample_id", "item", *KEY]].assign(row=keys.map(store.row_of)), store)


def defect_cell(sample_id: str) -> tuple[int, int]:
    """Where an anomaly is defective: the row and column of a cell."""
    return divmod(7 * int(sample_id.split("/")[1]) % CELLS**2, CELLS)


def marked_features(samples: pd.DataFrame, folder: Path, seed: int = 0) -> Features:
    """Noise, and one cell far away in the maps of anomalies."""
    rng = np.random.default_rng(seed)
    chosen = project_parameters().features.model_copy(update={"cutmix_views": 1, "anomaly_views": ["hflip"]})
    views = plan_views(samples, SPEC.image_size, chosen)
    maps = rng.normal(size=(len(views), CHANNELS, CELLS, CELLS))
    for number, sample in enumerate(views["sample_id"]):
        if not sample.startswith("good"):
            row, column = defect_cell(sample)
            maps[number, :, row, column] += 30
    spec = replace(SPEC, pooled_size=CHANNELS, map_shape=(CHANNELS, CELLS, CELLS))
    with FeatureStore(folder).open(spec).writing() as writer:
        writer.append(row_keys(views).tolist(), maps.mean((2, 3)), maps)
    return Features.locate(views, FeatureStore(folder).open(spec))


def small_parameters(parameters: Parameters) -> Parameters:
    """Small numbers, for fits in a second."""
    prototypes = {"n_prototypes": 2, "n_patch_prototypes": 10, "min_mode_size": 8, "folds": 2}
    training = {"epochs": 2, "iterations_per_epoch": 3, "head_epochs": 2, "head_members": 1, "hidden": 8}
    changes = {"prototypes": prototypes, "training": training}
    groups = {name: getattr(parameters, name).model_copy(update=changed) for name, changed in changes.items()}
    return parameters.model_copy(update=groups)


def plan_mpfm(runs: pd.DataFrame, features: Features, own: Parameters, memory: Memory | None = None) -> list[Trial]:
    """The trials of MPFM with the keys of all fits; with a memory, they are also fitted."""
    first = initialise_prototypes(runs, features, own.prototypes, own.repairs, COMPUTE)
    second = train_mpfm(Trials(first.tabulate(MEMORY), MEMORY), features, own.training, own.repairs, COMPUTE)
    third = calibrate_scores(Trials(second.tabulate(MEMORY), MEMORY), features, own.training, own.repairs, COMPUTE)
    if memory is not None:
        for plan in (first, second, third):
            plan.run(memory)
    return read_trials(third.tabulate(MEMORY))
