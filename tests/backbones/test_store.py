"""The feature store: parts count once their keys are written, whatever interrupted the writing."""

import errno
import gc
import os
import pickle
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.backbones import store
from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEYS, FeatureSpec, FeatureStore, StoredRows, StoreFolder
from mpfm_kedro.errors import InputError

SHAPES = ("resnet18", "digest", 64, ("layer3", "layer4"), ("layer4",), ("mean",), 3, (2, 1, 2))
SPEC = FeatureSpec(*SHAPES)


def numbers(keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that tell which key they belong to."""
    seeds = [np.random.default_rng(list(key.encode("utf-8", "surrogateescape"))) for key in keys]
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


NAMES = ["a||original", "b||original", "c||original", "d||original"]


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


BATCHES = st.lists(
    st.lists(st.text("abcdef0123|,é\udc80", min_size=1, max_size=12), unique=True, max_size=8), max_size=5
)


@given(batches=BATCHES, remnants=st.sets(st.sampled_from([".pooled.npy", ".maps.npy"])))
@settings(max_examples=40, deadline=None)
def test_interrupted_writing_resumes_from_the_first_missing_key(batches, remnants):
    """After each batch a writer dies: numbers without keys, or a file without its name, remain."""
    folder = Path(tempfile.mkdtemp())
    try:
        stores, seen = FeatureStore(folder), []
        for keys in batches:
            store = stores.open(SPEC)
            new = store.missing(keys)
            assert new == [name for name in keys if name not in seen]
            append(store, new)
            seen += new
            for name in remnants:
                (store.folder / f"99999{name}").write_bytes(b"half a pa")
                (store.folder / f".12.ab.99999{name}").write_bytes(b"")
            (store.folder / f".12.ab.99998{KEYS}").write_bytes(b"a|b|c\n")
            assert stores.open(SPEC).keys() == seen
            if seen:
                assert_holds(stores.open(SPEC), seen)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("index", [0, -1, slice(2, 7, 2), slice(0, 0), [5, 0, 5], np.array([], int), np.eye(9)[3] > 0])
def test_rows_of_several_parts_are_read_like_one_array(index):
    whole = np.random.default_rng(0).normal(size=(9, 2, 3)).astype(np.float16)
    rows = StoredRows([whole[:4], whole[4:4], whole[4:]], (2, 3), whole.dtype)
    assert (len(rows), rows.shape, rows.dtype, rows.itemsize) == (9, (9, 2, 3), np.float16, 2)
    np.testing.assert_array_equal(rows[index], whole[index])
    with pytest.raises(IndexError):
        rows[[9]]
    with pytest.raises(InputError, match="moved or deleted"):
        StoredRows([], (2, 3), whole.dtype)[np.array([0])]


@pytest.mark.parametrize(("size", "seconds", "parts"), [(0, 99, 5), (1 << 30, 99, 2), (1 << 30, 0, 5), (40, 99, 3)])
def test_batches_are_gathered_into_parts(stores, monkeypatch, size, seconds, parts):
    """The first one is written at once, others when they are large or old enough, or when the store is closed."""
    monkeypatch.setattr(store, "PART_BYTES", size)
    monkeypatch.setattr(store, "PART_SECONDS", seconds)
    names = [*NAMES, "e||original"]
    with stores.open(SPEC).writing() as writer:
        for name in names:
            writer.append([name], *numbers([name]))
    assert len(list(stores.open(SPEC).folder.glob("*.keys.txt"))) == parts
    assert_holds(stores.open(SPEC), names)


@pytest.mark.parametrize("file", ["pooled", "maps", "keys"])
def test_full_disk_is_named_and_loses_nothing_written_before(stores, file, monkeypatch):
    append(stores.open(SPEC), NAMES[:1])

    def full(descriptor: int) -> None:
        if f"00001.{file}" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, "")

    with monkeypatch.context() as patch, pytest.raises(InputError, match=rf"00001\.{file}\..*[Nn]o space .* are free"):
        patch.setattr(os, "fsync", full)
        append(stores.open(SPEC), NAMES[1:])
    assert stores.open(SPEC).missing(NAMES) == NAMES[1:]
    append(stores.open(SPEC), NAMES[1:])
    assert_holds(stores.open(SPEC), NAMES)


@pytest.mark.parametrize("name", ["00000.pooled.npy", "00000.maps.npy", "00000.keys.txt"])
@pytest.mark.parametrize("size", [0, 0.4, 0.95, None])
def test_a_part_that_does_not_fit_says_what_to_delete(stores, name, size):
    append(stores.open(SPEC), NAMES[:3])
    append(stores.open(SPEC), NAMES[3:])
    file = stores.open(SPEC).folder / name
    if size is None:
        file.unlink()
    else:
        os.truncate(file, int(size * file.stat().st_size))
    if name.endswith("keys.txt") and size is None:
        assert stores.open(SPEC).missing(NAMES) == NAMES[:3]
    else:
        keys = file.with_name("00000.keys.txt")
        with pytest.raises(InputError, match=r"00000\..* does not fit its keys .* start again") as raised:
            stores.open(SPEC).missing(NAMES)
        assert f"delete {keys} and" in str(raised.value) and "\n" not in str(raised.value)
        keys.unlink()
    append(stores.open(SPEC), stores.open(SPEC).missing(NAMES))
    assert_holds(stores.open(SPEC), NAMES)
    assert stores.overview()["rows"].tolist() == [4]


@pytest.mark.parametrize("place", range(4 * len("a||original\n")))
def test_no_damaged_key_gives_the_numbers_of_another_image(stores, place):
    append(stores.open(SPEC), NAMES)
    file = stores.open(SPEC).folder / "00000.keys.txt"
    content = bytearray(file.read_bytes())
    content[place] ^= 0x80 if place % 2 else 2
    file.write_bytes(content)
    keys = bytes(content).split(b"\n")[:-1]
    if len(keys) != 4 or len(set(keys)) < 4:
        with pytest.raises(InputError, match=r"does not fit its keys|kedro store free"):
            stores.open(SPEC).missing(NAMES)
        return
    missing = stores.open(SPEC).missing(NAMES)
    assert missing == [NAMES[place // len("a||original\n")]]
    append(stores.open(SPEC), missing)
    assert_holds(stores.open(SPEC), NAMES)


def test_files_are_unmapped_with_the_store(stores):
    """Tasks of one worker open the store again and again; Dask counts all pages that are mapped."""
    append(stores.open(SPEC), NAMES)
    folder = str(stores.open(SPEC).folder)
    gc.disable()
    try:
        opened = stores.open(SPEC)
        assert_holds(opened, NAMES)
        assert folder in Path("/proc/self/maps").read_text()
        del opened
        assert folder not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


@pytest.mark.parametrize("module", [store.decoding, store.views])
def test_another_version_of_decoding_or_views_is_another_store(module, monkeypatch):
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert FeatureSpec(*SHAPES).digest != SPEC.digest


OTHERS = {"backbone": "resnet34", "weights_digest": "other", "image_size": 65, "layers": ("layer2", "layer4")}
OTHERS |= {"map_layers": ("layer3",), "statistics": ("max",), "pooled_size": 4, "map_shape": (2, 2, 1)}
OTHERS |= {"precision": "bf16", "version": "other", "libraries": ("torch 0.1",)}


@pytest.mark.parametrize("field", [field.name for field in fields(FeatureSpec)])
def test_another_specification_is_another_folder(field, stores):
    append(stores.open(SPEC), ["a||original"])
    other = stores.open(replace(SPEC, **{field: OTHERS[field]}))
    assert other.folder != stores.open(SPEC).folder
    assert other.missing(["a||original"]) == ["a||original"]


@pytest.fixture
def features(stores) -> Features:
    keys = ["hash-a||original", "hash-a||hflip", "hash-b||original"]
    append(stores.open(SPEC), keys)
    store = stores.open(SPEC)
    index = pd.DataFrame([key.split("|") for key in keys], columns=["content_hash", "crop", "view"])
    index.insert(0, "sample_id", ["a", "a", "b"])
    index.insert(1, "item", ["a", "a", "b"])
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
    reversed_rows = features.index.iloc[::-1].reset_index(drop=True)
    assert Features(reversed_rows.assign(row=[5, 9, 7]), features.store).digest == features.digest
    changed = features.index.assign(content_hash=["hash-a", "hash-a", "hash-c"])
    assert Features(changed, features.store).digest != features.digest
    assert Features(features.index[:2], features.store).digest != features.digest
    other = StoreFolder(features.store.folder, replace(SPEC, weights_digest="other"))
    assert Features(features.index, other).digest != features.digest


def test_digest_covers_all_backbones_and_is_the_stores_for_one(features):
    store = StoreFolder(features.store.folder, replace(SPEC, backbone="dinov2_vits14"))
    other = Features(features.index, store)
    assert features.spec_digest == SPEC.digest
    both, swapped = replace(features, others=(other,)), replace(other, others=(features,))
    digests = {one.spec_digest for one in (features, other, both, swapped)}
    assert len(digests) == len({one.digest for one in (features, other, both, swapped)}) == 4
    assert both.specs == (SPEC, store.spec)


def test_views_without_a_row_are_an_error(features):
    assert Features.locate(features.index, features.store).index.equals(features.index)
    more = features.index.assign(content_hash=["hash-a", "hash-a", "hash-c"])
    with pytest.raises(InputError, match=r"lacks 1 of 3 .*pipelines=features") as raised:
        Features.locate(more, features.store)
    assert str(features.store.folder) in str(raised.value)


def test_features_travel_to_another_process_without_their_numbers(stores):
    keys = [f"{number}||original" for number in range(5000)]
    append(stores.open(SPEC), keys)
    store = stores.open(SPEC)
    assert_holds(store, keys[-3:])
    content = pickle.dumps(store)
    assert len(content) < 2000
    assert_holds(pickle.loads(content), keys[:3])


def test_room_is_checked_before_any_work(stores, monkeypatch):
    assert SPEC.row_bytes == 3 * 4 + 4 * 2
    assert stores.check_room(SPEC, 1000) == 20_000
    with pytest.raises(InputError, match="GB are free") as raised:
        stores.check_room(SPEC, 10**18)
    assert str(stores.root) in str(raised.value)
    usage = shutil.disk_usage(stores.root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=19))
    with pytest.raises(InputError):
        stores.check_room(SPEC, 1)
