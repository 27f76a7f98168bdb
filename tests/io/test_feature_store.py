"""The feature store: rows count once their key is written, whatever interrupted the writing."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.errors import InputError
from mpfm_kedro.io.feature_store import (
    Features,
    FeaturesDataset,
    FeatureSpec,
    FeatureStore,
    FeatureStoreDataset,
    StoreFolder,
)

SPEC = FeatureSpec("resnet18", "digest", 64, ("layer3", "layer4"), ("layer4",), ("mean",), 3, (2, 1, 2))


def numbers(keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that tell which key they belong to."""
    seeds = [np.random.default_rng(list(key.encode())) for key in keys]
    pooled = np.array([rng.normal(size=3) for rng in seeds], np.float32).reshape(-1, 3)
    maps = np.array([rng.normal(size=(2, 1, 2)) for rng in seeds], np.float16).reshape(-1, 2, 1, 2)
    return pooled, maps


def append(store: StoreFolder, keys: list[str]) -> None:
    with store.writing() as writer:
        writer.append(keys, *numbers(keys))


def assert_holds(store: StoreFolder, keys: list[str]) -> None:
    pooled, maps = numbers(keys)
    rows = [store.row_of[key] for key in keys]
    np.testing.assert_array_equal(store.pooled[rows], pooled)
    np.testing.assert_array_equal(store.maps[rows], maps)


@pytest.fixture
def stores(tmp_path: Path) -> FeatureStore:
    return FeatureStore(tmp_path / "store")


def test_rows_come_back(stores):
    keys = ["a||original", "a||hflip", "b|0,0,4,4|original"]
    assert stores.open(SPEC).missing(keys) == keys
    append(stores.open(SPEC), keys[:2])
    append(stores.open(SPEC), keys[2:])
    store = stores.open(SPEC)
    assert store.missing([*keys, "c||original", "c||original"]) == ["c||original"]
    assert store.pooled.dtype == np.float32
    assert store.maps.dtype == np.float16
    assert_holds(store, keys)


KEYS = st.lists(st.text("abcdef0123|,é", min_size=1, max_size=12), unique=True, max_size=8)
LEFT_OVER = st.tuples(st.binary(max_size=40), st.binary(max_size=40), st.text("abc|é", max_size=9))


@given(batches=st.lists(st.tuples(KEYS, LEFT_OVER), max_size=5))
@settings(max_examples=40, deadline=None)
def test_interrupted_writing_goes_on_at_the_first_missing_key(batches):
    """After each batch a writer dies: numbers without a key, or half of a key, are left behind."""
    folder = Path(tempfile.mkdtemp())
    try:
        stores, seen = FeatureStore(folder), []
        for keys, (pooled, maps, key) in batches:
            store = stores.open(SPEC)
            new = store.missing(keys)
            assert new == [name for name in keys if name not in seen]
            append(store, new)
            seen += new
            for name, rest in (("pooled.f32", pooled), ("maps.f16", maps), ("keys.txt", key.encode())):
                with (store.folder / name).open("ab") as file:
                    file.write(rest)
            assert stores.open(SPEC).keys() == seen
            if seen:
                assert_holds(stores.open(SPEC), seen)
    finally:
        shutil.rmtree(folder)


def test_rows_whose_numbers_were_lost_are_missing(stores):
    """A machine that lost power can have the keys on disk and not the numbers."""
    keys = ["a||original", "b||original", "c||original"]
    append(stores.open(SPEC), keys)
    file = stores.open(SPEC).folder / "pooled.f32"
    file.write_bytes(file.read_bytes()[:-5])
    assert stores.open(SPEC).missing(keys) == keys[2:]
    append(stores.open(SPEC), keys[2:])
    assert_holds(stores.open(SPEC), keys)


def test_interruption_inside_a_batch_loses_only_that_batch(stores):
    with pytest.raises(KeyboardInterrupt), stores.open(SPEC).writing() as writer:
        writer.append(["a||original"], *numbers(["a||original"]))
        raise KeyboardInterrupt
    assert stores.open(SPEC).missing(["a||original", "b||original"]) == ["b||original"]
    append(stores.open(SPEC), ["b||original"])
    assert_holds(stores.open(SPEC), ["a||original", "b||original"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_is_named_and_loses_nothing_written_before(stores):
    with pytest.raises(InputError, match=r"/dev/full.*[Nn]o space"), stores.open(SPEC).writing() as writer:
        writer.append(["a||original"], *numbers(["a||original"]))
        writer._files[1].close()
        writer._files[1] = open("/dev/full", "ab")  # noqa: SIM115, PTH123
        writer.append(["b||original"], *numbers(["b||original"]))
    append(stores.open(SPEC), ["b||original"])
    assert_holds(stores.open(SPEC), ["a||original", "b||original"])


def test_second_writer_is_refused(stores):
    with stores.open(SPEC).writing() as writer:
        with (
            pytest.raises(InputError, match="Another process is writing") as raised,
            stores.open(SPEC).writing(),
        ):
            pass
        assert str(stores.open(SPEC).folder) in str(raised.value)
        writer.append(["a||original"], *numbers(["a||original"]))
    append(stores.open(SPEC), ["b||original"])
    assert_holds(stores.open(SPEC), ["a||original", "b||original"])


@pytest.mark.parametrize(
    "change",
    [
        {"backbone": "resnet34"},
        {"weights_digest": "other"},
        {"image_size": 65},
        {"layers": ("layer2", "layer4")},
        {"map_layers": ("layer3",)},
        {"statistics": ("max",)},
        {"pooled_size": 4},
        {"map_shape": (2, 2, 1)},
    ],
)
def test_another_specification_is_another_folder(change, stores):
    append(stores.open(SPEC), ["a||original"])
    other = stores.open(replace(SPEC, **change))
    assert other.folder != stores.open(SPEC).folder
    assert other.missing(["a||original"]) == ["a||original"]


@pytest.fixture
def features(stores) -> Features:
    keys = ["hash-a||original", "hash-a||hflip", "hash-b||original"]
    append(stores.open(SPEC), keys)
    store = stores.open(SPEC)
    index = pd.DataFrame([key.split("|") for key in keys], columns=["content_hash", "crop", "view"])
    index.insert(0, "sample_id", ["a", "a", "b"])
    return Features(index.assign(row=[store.row_of[key] for key in keys]), store)


def test_features_find_the_rows_of_samples_and_views(features):
    assert features.rows(["b", "a"]).tolist() == [2, 0]
    assert features.rows(["a"], "hflip").tolist() == [1]
    assert features.rows([]).tolist() == []
    assert features.views("") == ["hflip", "original"]
    assert features.views("h") == ["hflip"]
    with pytest.raises(KeyError):
        features.rows(["b"], "hflip")


def test_digest_names_the_content_and_not_the_order_of_work(features):
    turned = features.index.iloc[::-1].reset_index(drop=True)
    assert Features(turned.assign(row=[5, 9, 7]), features.store).digest == features.digest
    changed = features.index.assign(content_hash=["hash-a", "hash-a", "hash-c"])
    assert Features(changed, features.store).digest != features.digest
    assert Features(features.index[:2], features.store).digest != features.digest
    other = StoreFolder(features.store.folder, replace(SPEC, weights_digest="other"))
    assert Features(features.index, other).digest != features.digest


def test_features_travel_to_another_process_without_their_numbers(stores):
    keys = [f"{number}||original" for number in range(5000)]
    append(stores.open(SPEC), keys)
    store = stores.open(SPEC)
    assert_holds(store, keys[-3:])
    content = pickle.dumps(store)
    assert len(content) < 2000
    assert_holds(pickle.loads(content), keys[:3])


def test_features_are_saved_with_the_place_of_their_store(features, tmp_path):
    dataset = FeaturesDataset(str(tmp_path / "index" / "features.parquet"), str(features.store.folder.parent))
    assert not dataset.exists()
    dataset.save(features)
    loaded = dataset.load()
    assert dataset.exists()
    assert loaded.store == features.store
    assert loaded.digest == features.digest
    assert loaded.index.equals(features.index)
    np.testing.assert_array_equal(loaded.store.pooled, features.store.pooled)


def test_overview_and_free(stores):
    assert stores.overview().empty
    append(stores.open(SPEC), ["a||original", "b||original"])
    append(stores.open(replace(SPEC, image_size=448)), ["a||original"])
    with (stores.open(SPEC).folder / "maps.f16").open("ab") as file:
        file.write(b"\0" * 3_000_000)
    table = stores.overview().set_index("store")
    small = table.loc[SPEC.digest]
    assert small[["backbone", "image_size", "rows", "megabytes"]].tolist() == ["resnet18", 64, 2, 3]
    assert len(table) == 2
    with pytest.raises(InputError, match=SPEC.digest):
        stores.free("nonsense")
    stores.free(SPEC.digest)
    assert stores.overview()["image_size"].tolist() == [448]
    assert stores.open(SPEC).missing(["a||original"]) == ["a||original"]


def test_room_is_checked_before_any_work(stores, monkeypatch):
    assert SPEC.row_bytes == 3 * 4 + 4 * 2
    assert stores.check_room(SPEC, 1000) == 20_000
    with pytest.raises(InputError, match="GB are free") as raised:
        stores.check_room(SPEC, 10**18)
    assert str(stores.root) in str(raised.value)
    usage = shutil.disk_usage(stores.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=19))
    with pytest.raises(InputError):
        stores.check_room(SPEC, 1)


def test_dataset_hands_out_the_stores(tmp_path):
    dataset = FeatureStoreDataset(str(tmp_path))
    assert dataset.load() == FeatureStore(tmp_path)
    with pytest.raises(Exception, match="row by row"):
        dataset.save("anything")
