"""A model at work: the same scores as in the pipeline, whatever form an image has."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from mpfm_kedro.datasets.features import FeaturesDataset
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.proportions import cut_padding, pad_to_square
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import Gallery
from mpfm_kedro.inspection.predictions import PredictionLog, predict_files
from mpfm_kedro.inspection.preparation import read_image
from mpfm_kedro.inspection.thresholds import DEFECTIVE
from mpfm_kedro.protocol.data import select
from production_models import made_image, made_model


@pytest.fixture(scope="module")
def files(fitted_project):
    return sorted(file for file in (fitted_project / "raw/synthetic").glob("*/*.png"))


@pytest.fixture(scope="module")
def predictions(inspector, files):
    return list(inspector.predict_many(files))


def test_scores_are_those_of_the_stored_features(inspector, files, predictions, fitted_project):
    out = fitted_project / "out"
    stored = FeaturesDataset(
        str(out / "04_feature/synthetic/production/features.parquet"), str(out / "04_feature/store")
    ).load()
    samples = pd.read_parquet(out / "02_intermediate/synthetic/production/samples.parquet")
    ids = dict(zip(samples["path"], samples["sample_id"], strict=True))
    raw = fitted_project / "raw/synthetic"
    names = np.array([ids[file.relative_to(raw).as_posix()] for file in files])
    expected = load(inspector.model.detector, torch.device("cpu")).score_samples(select(stored, names, ["original"]))
    np.testing.assert_allclose([own.score for own in predictions], expected.score, rtol=1e-4, atol=1e-3)
    assert [own.mode for own in predictions] == expected.mode.tolist()


def test_defects_are_found_and_normals_are_good(files, predictions):
    for file, own in zip(files, predictions, strict=True):
        assert (own.decision == DEFECTIVE) == (file.parent.name != "good")
        assert 0 < own.p_value <= 1 and own.heat_map.min() >= 0 and own.heat_map.max() <= 1
        assert own.size == Image.open(file).size


def test_regions_are_where_the_defect_is(files, predictions):
    inside = []
    for file, own in zip(files, predictions, strict=True):
        mask = file.parents[1] / "ground_truth" / file.parent.name / f"{file.stem}_mask.png"
        if mask.is_file() and own.regions:
            left, upper, right, lower = own.regions[0].box
            marked = np.asarray(Image.open(mask)) > 0
            inside.append(marked[upper:lower, left:right].sum() / marked.sum())
    assert len(inside) >= 12 and np.mean(inside) > 0.5


def test_the_nearest_images_are_of_the_kind_that_was_asked_for(inspector, files):
    normals, anomalies = inspector.explain(inspector.predict(files[0]))
    assert [own.defect_class for own in normals] == [""] * 4 and len(anomalies) == 1 and anomalies[0].defect_class
    assert normals[0].sample_id.endswith(files[0].name) and normals[0].distance < 0.05  # it is in the gallery itself
    assert [own.distance for own in normals] == sorted(own.distance for own in normals)
    assert normals[0].thumbnail[:2] == b"\xff\xd8"


def test_shares_are_sums_over_all_backbones():
    small = Inspector(made_model(("resnet18", 64), ("resnet18", 48)), "cpu")
    prediction = small.predict(made_image(np.random.default_rng(0), defect=True))
    assert sum(prediction.shares.values()) == pytest.approx(prediction.score)


def test_the_nearest_images_of_the_gallery_are_found():
    model = made_model()
    rng = np.random.default_rng(0)
    z = rng.normal(scale=rng.uniform(0.5, 3, (40, 1)), size=(40, model.card["backbones"][0]["pooled_size"]))
    names = [f"{i}" for i in range(40)]
    classes = np.where(np.arange(40) % 4 == 0, "spot", "")
    table = pd.DataFrame({"sample_id": names, "defect_class": classes, "thumbnail": b"jpeg"})
    small = Inspector(replace(model, gallery=Gallery(table, z.astype(np.float32))), "cpu")
    prediction = small.predict(made_image(rng))
    normals, anomalies = small.explain(prediction, nearest=3)
    distance = np.sqrt(np.square(z - prediction.z).mean(1))
    order = np.argsort(distance)
    expected = [i for i in order if classes[i] == ""][:3], [i for i in order if classes[i]][:1]
    for found, places in zip((normals, anomalies), expected, strict=True):
        assert [own.sample_id for own in found] == [names[i] for i in places]
        assert [own.distance for own in found] == pytest.approx(distance[places], rel=1e-4)
        assert {own.defect_class for own in found} == {classes[places[0]]}


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (None, "NoneType is neither a path"),
        ([[0, 1], [1, 0]], "list is neither a path"),
        (np.zeros((3, 4, 5, 6), np.uint8), "shape"),
        (np.zeros((4, 4, 2), np.uint8), "shape"),
        (np.zeros((0, 4), np.uint8), "shape"),
        (np.zeros((4, 4), np.uint16), "learned from images of eight bits"),
        (np.zeros((4, 4), complex), "complex"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array, match):
    with pytest.raises(InputError, match=match):
        read_image(array, "")


def test_deep_arrays_are_scaled_by_the_range_of_the_model():
    deep = np.array([[0, 4095], [2048, 8000]], np.uint16)
    assert np.asarray(read_image(deep, "0..4095"))[..., 0].tolist() == [[0, 255], [128, 255]]


def test_values_of_another_camera_are_refused_with_the_numbers():
    with pytest.raises(InputError, match=r"4000 to 60000; those that the model has learned from are in 0\.\.4095"):
        read_image(np.array([[5000, 4000], [60000, 60000]], np.uint16), "0..4095")


def test_the_network_of_an_inspector_that_is_gone_is_freed_by_the_next(model_folder):
    """An app that learns loads a model again and again."""
    gc.disable()
    try:
        network = weakref.ref(Inspector.load(model_folder, "cpu")._backbones[0].network)
        Inspector.load(model_folder, "cpu")
        assert network() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [(120, 40), (31, 64)])
def test_proportions_are_kept_from_pixels_to_boxes(size: tuple[int, int], tmp_path: Path):
    image = made_image(np.random.default_rng(5), size, defect=True)
    image.save(tmp_path / "one.png")
    model = made_model()
    kept = Inspector(replace(model, card=model.card | {"keep_proportions": True}), "cpu")
    found, of_square = kept.predict(image), Inspector(model, "cpu").predict(pad_to_square(image))
    assert found.score == of_square.score and found.size == size
    np.testing.assert_array_equal(found.heat_map, cut_padding(of_square.heat_map, size))
    for region in found.regions:
        left, upper, right, lower = region.box
        assert 0 <= left < right <= size[0] and 0 <= upper < lower <= size[1]
    log = PredictionLog.of(tmp_path / "log", kept.card)
    table = predict_files(kept, [tmp_path / "one.png"], log, kept.threshold, workers=0)
    assert table["score"].tolist() == pytest.approx([found.score])
