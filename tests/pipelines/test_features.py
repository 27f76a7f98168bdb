"""Which views are computed, and that an interrupted extraction resumes."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from torchvision.models import get_model

from mpfm_kedro.backbones import extraction
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import Extraction, named_loss_of_readers
from mpfm_kedro.backbones.features import BackboneWeights, Features
from mpfm_kedro.backbones.store import FeatureStore, StoreWriter, extraction_version, row_keys
from mpfm_kedro.backbones.weights import digest
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters
from mpfm_kedro.pipelines.features import plan_views
from random_networks import random_network

HERE = ComputeParameters(processes=0, dask_scheduler=None, device="cpu")  # on this machine

CONF = Path(__file__).parents[2] / "conf" / "base"
BASE = yaml.safe_load((CONF / "parameters_features.yml").read_text())["features"]
SMALL = {
    "layers": ["features.3"],
    "map_layers": ["features.1", "features.4"],
    "statistics": ["mean", "std"],
    "batch_size": 2,
    "workers": 0,
}
NAME = "squeezenet1_1"  # small
SIZE = 32


def parameters(**changes: Any) -> FeatureParameters:
    return FeatureParameters(**(BASE | SMALL | changes))


def squeezenet(seed: int) -> BackboneWeights:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tensors = get_model(NAME, weights=None).state_dict()
    return BackboneWeights(NAME, digest(tensors), tensors)


@pytest.fixture(scope="module")
def weights() -> BackboneWeights:
    return squeezenet(0)


SAMPLES = pd.DataFrame(
    {
        "sample_id": ["a", "b", "c", "d", "e"],
        "item": ["a", "b", "c", "d", "e"],
        "split": ["train", "train", "test", "anomaly", "anomaly"],
        "problem": ["", "damaged", "", "", "damaged"],
        "path": "path",
        "crop": "",
        "pixel_range": "",
        "content_hash": "hash",
    }
)


def test_only_training_normals_and_anomalies_get_further_views():
    views = plan_views(SAMPLES, SIZE, parameters(cutmix_views=2, anomaly_views=["hflip"]))
    assert sorted(zip(views["sample_id"], views["view"], strict=True)) == [
        ("a", "cutmix-0"),
        ("a", "cutmix-1"),
        ("a", "original"),
        ("c", "original"),
        ("d", "hflip"),
        ("d", "original"),
    ]


def test_range_of_a_deep_image_is_part_of_its_content_and_eight_bits_stay_as_they_are():
    few = parameters(cutmix_views=0, anomaly_views=["hflip"])
    plain = plan_views(SAMPLES, SIZE, few)
    assert set(row_keys(plain)) == {"hash||original", "hash||hflip"}
    deep = plan_views(SAMPLES.assign(pixel_range=["0..1", "0..1", "0..1", "", "0..1"]), SIZE, few)
    assert deep["pixel_range"].tolist() == ["0..1", "0..1", "", ""]
    assert row_keys(deep).tolist() == ["hash@0..1||original"] * 2 + ["hash||original", "hash||hflip"]


def test_deep_images_have_the_features_of_eight_bits_and_another_range_is_never_mistaken(images, weights, tmp_path):
    eight = np.asarray(images.read("0.png"))
    np.save(images.folder / "0.npy", eight / np.float32(255))
    row = {"sample_id": "a", "item": "a", "path": "0.npy", "crop": "", "split": "test", "problem": ""}
    samples = pd.DataFrame([row, row | {"path": "0.png", "sample_id": "b"}]).assign(content_hash=["deep", "eight"])

    def pooled(pixel_range: str) -> np.ndarray:
        views = plan_views(samples.assign(pixel_range=[pixel_range, ""]), SIZE, parameters())
        features = Extraction(views, images, [weights], parameters(), HERE).run(FeatureStore(tmp_path / "s"))
        return features.store.pooled[features.rows(["a", "b"])]

    same, darker = pooled("0..1"), pooled("0..2")
    np.testing.assert_array_equal(same[0], same[1])
    np.testing.assert_array_equal(darker[1], same[1])
    assert np.abs(darker[0] - same[0]).max() > 0.01


def test_last_batch_may_have_one_image(images, weights, tmp_path):
    """Eight views in batches of seven: a tensor of one position would index a string."""
    views = plan(images).assign(image_size=SIZE).iloc[:8]
    extraction = Extraction(views, images, [weights], parameters(batch_size=7), HERE)
    features = extraction.run(FeatureStore(tmp_path / "s"))
    assert sorted(features.store.keys()) == sorted(row_keys(views))


@pytest.mark.parametrize(
    ("sides", "size"),
    [
        ([(300, 300)] * 4, 224),
        ([(1024, 900)] * 4, 448),
        ([(448, 2000)] * 4, 448),
        ([(2000, 447)] * 4, 224),
        ([(600, 600), (600, 600), (100, 100), (100, 90)], 224),
        ([(600, 600), (700, 500), (500, 500), (60, 60)], 448),
    ],
)
def test_auto_is_as_large_as_most_normals_allow(sides, size):
    width, height = zip(*sides, strict=True)
    normals = SAMPLES.iloc[[0, 0, 0, 0]].assign(width=width, height=height)
    tested = SAMPLES.iloc[[2, 3, 3, 3, 3, 3]].assign(width=5000 if size == 224 else 50, height=5000)
    samples = pd.concat([normals, tested])
    assert set(plan_views(samples, "auto", parameters())["image_size"]) == {size}
    assert set(plan_views(samples, 96, parameters())["image_size"]) == {96}


@pytest.mark.parametrize(("size", "warned"), [(448, True), (300, False), (301, True), (224, False), ("auto", False)])
def test_a_size_above_that_of_the_images_is_warned_of(size, warned, caplog):
    """Images of 300 pixels; the defaults never warn."""
    samples = SAMPLES.assign(width=[300, 1, 9000, 9000, 1], height=900)
    plan_views(samples, size, parameters())
    assert [record.args for record in caplog.records] == ([(size, 300.0)] if warned else [])
    assert ("enlarges the images" in caplog.text) == warned


def test_auto_looks_at_the_crop_where_there_is_one():
    pieces = SAMPLES.iloc[[0, 0]].assign(width=500, height=1255, crop=["0,0,500,418", "0,418,500,836"])
    assert set(plan_views(pieces, "auto", parameters())["image_size"]) == {224}


@pytest.fixture
def images(tmp_path: Path) -> ImageLoader:
    rng = np.random.default_rng(0)
    (tmp_path / "raw").mkdir()
    for number in range(7):
        write(tmp_path / "raw" / f"{number}.png", rng)
    return ImageLoader("folder", tmp_path / "raw", 10**6, tmp_path / "files.parquet")


def write(file: Path, rng: np.random.Generator) -> None:
    Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(file)


def plan(images: ImageLoader) -> pd.DataFrame:
    rows = []
    for file in sorted(images.folder.glob("*.png")):
        content = images.examine_crops(file.name, [""])[0]["content_hash"]
        for view in ("original", "cutmix-0"):
            row = {"sample_id": file.stem, "path": file.name, "crop": "", "content_hash": content, "view": view}
            rows.append(row | {"item": file.stem})
    return pd.DataFrame(rows)


def run(images: ImageLoader, weights: BackboneWeights, root: Path, size: int = SIZE, **changes: Any) -> Features:
    views = plan(images).assign(image_size=size)
    return Extraction(views, images, [weights], parameters(**changes), HERE).run(FeatureStore(root))


def by_view(features: Features) -> tuple[np.ndarray, np.ndarray]:
    rows = features.index.sort_values(["sample_id", "view"])["row"].to_numpy()
    return np.array(features.store.pooled[rows]), np.array(features.store.maps[rows])


def test_shards_on_dask_have_the_same_rows_bit_by_bit(images, weights, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    monkeypatch.setattr(extraction, "BATCHES", 2)
    here = run(images, weights, tmp_path / "here", batch_size=3)
    views = plan(images).assign(image_size=SIZE)
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, protocol="tcp://") as cluster:
        compute = ComputeParameters(processes=0, dask_scheduler=cluster.scheduler_address, device="cpu")
        sharded = Extraction(views, images, [weights], parameters(batch_size=3, workers=1), compute)
        there = sharded.run(FeatureStore(tmp_path / "there"))
    for ours, theirs in zip(by_view(here), by_view(there), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(there.store.keys()) == 14


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The images that were decoded, in order."""
    paths: list[str] = []
    read = ImageLoader.read

    def count(self: ImageLoader, path: str, crop: str = "", pixel_range: str = "") -> Image.Image:
        paths.append(path)
        return read(self, path, crop, pixel_range)

    monkeypatch.setattr(ImageLoader, "read", count)
    return paths


def test_rows_are_those_of_the_backbone(images, weights, tmp_path):
    features = run(images, weights, tmp_path / "store")
    backbone = Backbone(NAME, weights.tensors, SMALL["layers"], SMALL["map_layers"])
    image = images.read("3.png").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    expected = backbone.features(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None], SMALL["statistics"])
    (row,) = features.rows(["3"])
    np.testing.assert_allclose(features.store.pooled[row], expected[0][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(features.store.maps[row], expected[1][0], rtol=2e-3, atol=1e-3)


def test_nothing_is_computed_twice(images, weights, tmp_path, reads):
    first = run(images, weights, tmp_path / "store")
    assert len(reads) == 14
    again = run(images, weights, tmp_path / "store")
    assert len(reads) == 14
    assert again.index.equals(first.index)
    write(images.folder / "7.png", np.random.default_rng(9))
    more = run(images, weights, tmp_path / "store")
    assert reads[14:] == ["7.png", "7.png"]
    assert more.index["row"].max() == 15


def test_backbones_side_by_side_have_the_rows_of_each_alone(images, weights, tmp_path, reads):
    alone = [run(images, one, tmp_path / "alone") for one in (weights, squeezenet(1))]
    reads.clear()
    views = plan(images).assign(image_size=SIZE)
    both = Extraction(views, images, [weights, squeezenet(1)], parameters(), HERE).run(FeatureStore(tmp_path / "alone"))
    assert reads == []
    assert [one.store.folder for one in (both, *both.others)] == [one.store.folder for one in alone]
    assert both.others[0].index.equals(alone[1].index)
    assert both.spec_digest not in {one.spec_digest for one in alone}


def test_transformer_sees_a_multiple_of_its_patches_and_depends_on_its_own_version(images, weights, tmp_path):
    tensors = random_network("dinov2_vits14").state_dict()
    own = BackboneWeights("dinov2_vits14", digest(tensors), tensors)
    spec = run(images, own, tmp_path, layers=["norm"], map_layers=["blocks.0"]).store.spec
    assert (spec.image_size, spec.map_shape) == (28, (384, 2, 2))
    assert spec.version == extraction_version("TransformerBackbone 1")
    assert run(images, weights, tmp_path).store.spec.version == extraction_version()


def test_equal_images_share_their_rows(images, weights, tmp_path, reads):
    (images.folder / "8.png").write_bytes((images.folder / "0.png").read_bytes())
    features = run(images, weights, tmp_path / "store")
    assert len(reads) == 14
    assert features.rows(["8"]).tolist() == features.rows(["0"]).tolist()


def test_interrupted_extraction_resumes(images, weights, tmp_path, reads, monkeypatch):
    undisturbed = run(images, weights, tmp_path / "undisturbed")
    reads.clear()
    append, batches = StoreWriter.append, []

    def interrupt(self: StoreWriter, keys: list[str], pooled: np.ndarray, maps: np.ndarray) -> None:
        batches.append(keys)
        if len(batches) == 4:
            raise KeyboardInterrupt
        append(self, keys, pooled, maps)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StoreWriter, "append", interrupt)
        run(images, weights, tmp_path / "store")
    assert len(reads) == 8
    resumed = run(images, weights, tmp_path / "store")
    assert len(reads) == 8 + 14 - 6
    assert resumed.digest == undisturbed.digest
    for found, expected in zip(by_view(resumed), by_view(undisturbed), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_another_backbone_size_or_image_is_never_mistaken(images, weights, tmp_path, reads):
    first = run(images, weights, tmp_path / "store")
    seen = {first.store.folder}
    for changes in (
        {"weights": squeezenet(1)},
        {"size": 40},
        {"layers": ["features.4"]},
        {"map_layers": ["features.3"]},
        {"statistics": ["max", "std"]},
        {"precision": "bf16"},
    ):
        reads.clear()
        other = run(images, **({"weights": weights, "root": tmp_path / "store"} | changes))
        assert len(reads) == 14
        assert other.store.folder not in seen
        assert other.digest != first.digest
        seen.add(other.store.folder)
    reads.clear()
    before = by_view(first)[0]
    write(images.folder / "2.png", np.random.default_rng(5))
    changed = run(images, weights, tmp_path / "store")
    assert reads == ["2.png", "2.png"]
    assert changed.digest != first.digest
    same = (by_view(changed)[0] == before).all(1)
    assert same.tolist() == [True] * 4 + [False] * 2 + [True] * 8


def test_padded_images_have_a_store_of_their_own_and_squeezed_ones_the_same_as_before(images, weights, tmp_path):
    squeezed, padded = (run(images, weights, tmp_path, keep_proportions=keep).store.spec for keep in (False, True))
    assert padded.digest != squeezed.digest and padded.keep_proportions and not squeezed.keep_proportions
    assert set(asdict(squeezed)) == set(asdict(padded)) and "proportions" not in str(asdict(squeezed))


def test_too_little_disk_is_said_before_any_image_is_decoded(images, weights, tmp_path, reads, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(Exception, match=r"needs .* kB for features, 100 B are free"):
        run(images, weights, tmp_path / "store")
    assert reads == []


def extract_in_another_process(images: ImageLoader, root: Path, log: Path) -> None:
    logging.basicConfig(filename=log, level=logging.INFO, format="%(message)s")
    run(images, squeezenet(0), root)


def assert_whole(root: Path, expected: Features) -> None:
    """Every row is there once, with the numbers of its own view."""
    store = FeatureStore(root).open(expected.store.spec)
    assert sorted(store.keys()) == sorted(expected.store.keys())
    found = Features.locate(expected.index, store)
    for values, others in zip(by_view(found), by_view(expected), strict=True):
        np.testing.assert_allclose(values, others, rtol=1e-4, atol=1e-3)


def test_second_process_waits_and_computes_what_is_still_missing(images, weights, tmp_path):
    expected = run(images, weights, tmp_path / "alone")
    store, log = FeatureStore(tmp_path / "store").open(expected.store.spec), tmp_path / "log"
    arguments = (images, tmp_path / "store", log)
    process = get_context("spawn").Process(target=extract_in_another_process, args=arguments)
    with store.writing() as writer:
        process.start()
        deadline = time.monotonic() + 120
        while not (log.is_file() and "Waiting" in log.read_text()):
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
        some = expected.index[:6]
        rows = some["row"].to_numpy()
        writer.append(row_keys(some).tolist(), expected.store.pooled[rows], expected.store.maps[rows])
    process.join(120)
    assert process.exitcode == 0
    lines = log.read_text().splitlines()
    assert [str(store.folder) in line for line in lines if "Waiting" in line] == [True]
    assert any("8 of 14 views are new" in line for line in lines)
    assert_whole(tmp_path / "store", expected)


class KilledLoader(ImageLoader):
    """One whose process is killed at its third image."""

    def read(self, path: str, crop: str = "", pixel_range: str = "") -> Image.Image:
        if path == "2.png":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(path, crop, pixel_range)


def test_a_killed_reader_of_images_is_one_clear_line_and_loses_no_row(images, weights, tmp_path):
    views = plan(images)
    killed = KilledLoader(images.dataset, images.folder, images.max_pixels, images.memory)
    with pytest.raises(InputError, match=r"A worker process was killed .* features\.workers"):
        run(killed, weights, tmp_path / "store", workers=1)
    assert len(run(images, weights, tmp_path / "store").store.keys()) == row_keys(views).nunique()


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError, RuntimeError("DataLoader worker (pid 1) is killed")])
def test_whatever_python_raises_for_a_killed_reader_is_that_line(error):
    with pytest.raises(InputError, match=r"A worker process was killed .* features\.workers"), named_loss_of_readers():
        raise error
    with pytest.raises(RuntimeError, match="another"), named_loss_of_readers():
        raise RuntimeError("another")
