"""Pixel measures of trials: from real detectors, on features whose maps show the defect where the mask is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from test_run_data import SPEC, parameters, table
from test_trials import mpfm, named
from test_trials import parameters as all_parameters

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEY, FeatureStore, row_keys
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import Cache
from mpfm_kedro.experiments.localisation import Localiser, measure_localisation, where_marked
from mpfm_kedro.experiments.pixel_measures import Marked
from mpfm_kedro.experiments.protocol import make_study_runs
from mpfm_kedro.experiments.specifications import setting_specifications
from mpfm_kedro.experiments.trials import Trial, fit_piece, plan_pieces, plan_trials, read_trials
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.pipelines.features.nodes import plan_views

CELLS, CELL, CHANNELS = 6, 8, 4
CLASSES = {"dent": 12, "hole": 11}
COMPUTE = ComputeParameters(processes=1, dask_scheduler=None)
project_parameters = all_parameters  # a fixture


def defect_cell(number: int) -> tuple[int, int]:
    return divmod(7 * number % CELLS**2, CELLS)


def marked_samples(folder: Path) -> pd.DataFrame:
    """Normals without masks, and anomalies with a mask of the one cell that is defective."""
    samples = table(30, 8, CLASSES).assign(width=CELLS * CELL, height=CELLS * CELL, mask_path="")
    for place, row in samples[samples["label"] == 1].iterrows():
        name, number = row["sample_id"].split("/")
        y, x = defect_cell(int(number))
        mask = np.zeros((CELLS * CELL, CELLS * CELL), dtype=np.uint8)
        mask[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL] = 255
        file = folder / f"masks/{name}{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(mask).save(file)
        samples.loc[place, "mask_path"] = f"masks/{file.name}"
    return samples


def marked_features(samples: pd.DataFrame, folder: Path) -> Features:
    """Noise, and one cell far away in the maps of anomalies."""
    rng = np.random.default_rng(0)
    views = plan_views(samples, SPEC.image_size, parameters(cutmix_views=1, anomaly_views=[]))
    maps = rng.normal(size=(len(views), CHANNELS, CELLS, CELLS))
    for place, sample in enumerate(views["sample_id"]):
        if not sample.startswith("good"):
            y, x = defect_cell(int(sample.split("/")[1]))
            maps[place, :, y, x] += 30
    spec = replace(SPEC, pooled_size=CHANNELS, map_shape=(CHANNELS, CELLS, CELLS))
    with FeatureStore(folder).open(spec).writing() as writer:
        writer.append(row_keys(views).tolist(), maps.mean((2, 3)), maps)
    return Features.locate(views[["sample_id", *KEY]], FeatureStore(folder).open(spec))


@pytest.fixture(scope="module")
def world(tmp_path_factory, project_parameters):
    """Samples, images, features, MPFM that knows no anomaly and Mahalanobis, and a cache."""
    folder = tmp_path_factory.mktemp("localisation")
    samples = marked_samples(folder)
    features = marked_features(samples, folder / "store")
    images = ImageLoader("synthetic", folder, 10**8, folder / "files.parquet")
    prototypes, repairs, training = mpfm(project_parameters)
    prototypes = prototypes.model_copy(update={"n_patch_prototypes": 10, "min_mode_size": 8})
    specifications = [
        setting_specifications(prototypes, repairs, training)[-1],
        named(project_parameters, "Mahalanobis"),
    ]
    runs = make_study_runs(samples, "all", [3], 1, 0)
    trials = read_trials(plan_trials(runs, specifications), runs)
    cache = Cache(folder / "cache")
    models = {}
    for name, task in plan_pieces(trials, features, cache, None, "cpu").items():
        if not task.entry.exists():
            fit_piece(replace(task, memory=1 << 30))
        models[name] = task.entry
    return trials, samples, images, features, models, cache


def measure(world, samples=None) -> pd.DataFrame:
    trials, own, images, features, models, cache = world
    samples = own if samples is None else samples
    return measure_localisation(trials, samples, images, features, models, cache, "cpu", COMPUTE)


def entries(world) -> list[str]:
    return sorted(file.name for file in world[-1].root.glob("pixels-*"))


def test_each_run_of_a_detector_with_maps_is_measured(world):
    found = measure(world)
    assert set(found["method"]) == {"MPFM, no anomaly known"}  # Mahalanobis has no maps
    assert found["run"].tolist() == [trial.run["run"] for trial in world[0][::2]]
    assert found["pixel_auroc"].between(0.9, 1).all()
    assert found["aupro"].between(0.6, 1).all()
    assert found["pixel_f1"].between(0.3, 1).all()
    # runs with other test samples share the detector, and have measures of their own
    assert found["pixel_auroc"].nunique() == len(found) == 3


def test_measures_are_cached_by_the_masks(world):
    first = measure(world)
    before = entries(world)
    pd.testing.assert_frame_equal(measure(world), first)
    assert entries(world) == before
    file = world[2].folder / world[1]["mask_path"].iloc[-1]
    content = file.read_bytes()
    try:
        Image.new("L", (CELLS * CELL, CELLS * CELL), 255).save(file)
        changed = measure(world)
    finally:
        file.write_bytes(content)
    assert len(entries(world)) > len(before)
    assert (changed["aupro"] != first["aupro"]).any()


def test_without_masks_nothing_is_measured(world):
    found = measure(world, world[1].assign(mask_path=""))
    assert found.empty
    assert found.columns.tolist() == ["setting", "run", "method", "pixel_auroc", "aupro", "pixel_f1"]


def test_an_anomaly_without_a_mask_does_not_count(world):
    """Its defect would be counted as normal pixels, and lower the figures."""
    samples = world[1].copy()
    few = samples["sample_id"].isin(["dent/000", "hole/000"])
    samples.loc[~few, "mask_path"] = ""
    found = measure(world, samples)
    assert (found["pixel_f1"] > 0.3).all()


def test_missing_mask_is_named(world):
    samples = world[1].copy()
    samples.loc[samples["label"] == 1, "mask_path"] = "masks/gone.png"
    with pytest.raises(InputError, match=r"Cannot read the mask .*gone\.png"):
        measure(world, samples)


def test_where_samples_are_marked():
    samples = pd.DataFrame(
        [
            ("whole", 1, "m.png", "", 900, 600),
            ("crop", 1, "m.png", "256,0,512,200", 4096, 256),
            ("large", 0, "", "", 4096, 256),
            ("normal strip", 0, "m.png", "0,0,50,60", 50, 180),
            ("unknown", 1, "", "", 10, 10),
        ],
        columns=["sample_id", "label", "mask_path", "crop", "width", "height"],
    )
    assert where_marked(samples) == {
        "whole": Marked("m.png", "", (900, 600)),
        "crop": Marked("m.png", "256,0,512,200", (256, 200)),
        "large": Marked("", "", (1024, 64)),
        "normal strip": Marked("m.png", "0,0,50,60", (50, 60)),
        "unknown": None,
    }


def test_localisers_are_told_from_other_detectors(world):
    from pkgutil import resolve_name

    import torch

    def load(trial: Trial) -> object:
        pieces = {piece.name: world[4][trial.piece_name(piece)].load() for piece in trial.specification.pieces}
        return resolve_name(trial.specification.load)(pieces, torch.device("cpu"))

    ours, other = (load(trial) for trial in world[0][:2])
    assert isinstance(ours, Localiser)
    assert not isinstance(other, Localiser)
