"""The feature store: rows count once their key is written, whatever interrupted the writing."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro import provenance
from mpfm_kedro.backbones import checked_rows, store
from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import FeatureSpec, FeatureStore, StoreFolder
from mpfm_kedro.errors import InputError

SHAPES = ("resnet18", "digest", 64, ("layer3", "layer4"), ("layer4",), ("mean",), 3, (2, 1, 2))
SPEC = FeatureSpec(*SHAPES)


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
REMNANT = st.tuples(st.binary(max_size=40), st.binary(max_size=40), st.text("abc|é", max_size=9))


@given(batches=st.lists(st.tuples(KEYS, REMNANT), max_size=5))
@settings(max_examples=40, deadline=None)
def test_interrupted_writing_resumes_from_the_first_missing_key(batches):
    """After each batch a writer dies: numbers without a key, or half of a key, remain."""
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


NAMES = ["a||original", "b||original", "c||original", "d||original"]


def flip(file: Path, place: int) -> None:
    """Change one bit as an ageing disk does: the date of the file stays."""
    found, content = file.stat(), bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize(("name", "size"), [("pooled.f32", 12), ("maps.f16", 8)])
def test_a_damaged_row_is_not_read(stores, name, size):
    append(stores.open(SPEC), NAMES)
    assert stores.open(SPEC).missing(NAMES) == []  # verified, and remembered
    flip(stores.open(SPEC).folder / name, size + 1)
    store = stores.open(SPEC)
    rows = store.pooled if name.startswith("pooled") else store.maps
    assert len(rows[[0, 2, 3]]) == 3
    with pytest.raises(InputError, match=rf"{name} is damaged in row 1 \('b\|\|original'\).*start again") as raised:
        rows[[0, 1]]
    assert "\n" not in str(raised.value)


def test_three_damaged_values_of_one_map_are_noticed(stores):
    """Together they once changed a score from −1.9 to 17.6."""
    append(stores.open(SPEC), NAMES)
    for place in (1, 3, 5):
        flip(stores.open(SPEC).folder / "maps.f16", place)
    with pytest.raises(InputError, match=r"maps\.f16 is damaged in row 0"):
        stores.open(SPEC).maps[0]
    assert stores.open(SPEC).missing(NAMES) == NAMES[:1]


@pytest.mark.parametrize("place", [0, 9, 12 + 12])
def test_a_damaged_row_is_named_and_written_again(stores, place, caplog):
    append(stores.open(SPEC), NAMES)
    flip(stores.open(SPEC).folder / "pooled.f32", place)
    damaged = NAMES[place // 12]
    assert stores.open(SPEC).missing(NAMES) == [damaged]
    assert stores.open(SPEC).missing(NAMES) == [damaged]
    assert caplog.text.count(repr(damaged)) == 1
    append(stores.open(SPEC), [damaged])
    assert stores.open(SPEC).missing(NAMES) == []
    assert_holds(stores.open(SPEC), NAMES)
    assert caplog.text.count("is damaged in") == 1


def test_damage_that_a_reader_finds_is_known_at_the_next_start(stores):
    append(stores.open(SPEC), NAMES)
    assert stores.open(SPEC).missing(NAMES) == []
    flip(stores.open(SPEC).folder / "maps.f16", 0)
    assert stores.open(SPEC).missing(NAMES) == []  # not all is read at every start
    with pytest.raises(InputError):
        stores.open(SPEC).maps[:]
    assert stores.open(SPEC).missing(NAMES) == NAMES[:1]


@pytest.mark.parametrize("place", range(4 * len("a||original\n")))
def test_no_damaged_key_gives_the_numbers_of_another_image(stores, place):
    """A lost end of a line moves all that follow to other rows; bytes that are no text have their place."""
    append(stores.open(SPEC), NAMES)
    file = stores.open(SPEC).folder / "keys.txt"
    content = bytearray(file.read_bytes())
    content[place] ^= 0x80 if place % 2 else 2
    file.write_bytes(content)
    missing = stores.open(SPEC).missing(NAMES)
    assert missing
    append(stores.open(SPEC), missing)
    assert stores.open(SPEC).missing(NAMES) == []
    assert_holds(stores.open(SPEC), NAMES)


@pytest.mark.parametrize("name", ["pooled.f32", "maps.f16", "checksums.u32", "keys.txt", "verified.json", "store.json"])
@pytest.mark.parametrize("size", [0, 0.4])
def test_a_cut_file_loses_its_rows_and_no_others(stores, name, size):
    append(stores.open(SPEC), NAMES)
    assert stores.open(SPEC).missing(NAMES) == []
    file = stores.open(SPEC).folder / name
    os.truncate(file, int(size * file.stat().st_size))
    append(stores.open(SPEC), stores.open(SPEC).missing(NAMES))
    assert stores.open(SPEC).missing(NAMES) == []
    assert_holds(stores.open(SPEC), NAMES)
    assert stores.overview()["rows"].tolist() == [4]


def test_files_are_unmapped_with_the_store(stores):
    """Tasks of one worker open the store again and again; Dask counts all pages that are mapped."""
    append(stores.open(SPEC), ["a||original"])
    gc.disable()
    try:
        store = stores.open(SPEC)
        mapped = [weakref.ref(rows._values) for rows in (store.pooled, store.maps)]
        del store
        assert all(each() is None for each in mapped)
    finally:
        gc.enable()


def test_a_row_is_verified_once(stores, monkeypatch):
    append(stores.open(SPEC), NAMES)
    rows = stores.open(SPEC).maps
    rows[[0, 1]]
    read = []
    monkeypatch.setattr(checked_rows, "checksum", lambda key, row: read.append(key) or 0)
    assert stores.open(SPEC).maps[[1, 0]].shape == (2, 2, 1, 2)
    assert read == []


@pytest.mark.parametrize("module", [store.decoding, store.views])
def test_another_version_of_decoding_or_views_is_another_store(module, monkeypatch):
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert FeatureSpec(*SHAPES).digest != SPEC.digest


def test_another_version_of_a_library_is_another_store(monkeypatch):
    versions = provenance.library_versions()
    for name in ("numpy", "pillow", "torch", "torchvision"):
        monkeypatch.setattr(store, "library_versions", lambda name=name: versions | {name: "0.0.1"})
        assert FeatureSpec(*SHAPES).digest != SPEC.digest
    monkeypatch.setattr(store, "library_versions", lambda: versions | {"scikit-learn": "0.0.1"})
    assert FeatureSpec(*SHAPES).digest == SPEC.digest


def test_specification_needs_no_torch():
    code = f"import sys; from mpfm_kedro.backbones.store import FeatureSpec; FeatureSpec(*{SHAPES}).digest; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
        {"precision": "bf16"},
        {"version": "other"},
        {"libraries": ("torch 0.1",)},
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
    both, swapped = replace(features, beside=(other,)), replace(other, beside=(features,))
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


def test_store_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "store").write_text("a file where a folder should be")
    store = FeatureStore(tmp_path / "store").open(SPEC)
    with pytest.raises(InputError) as raised, store.writing():
        pass
    assert str(store.folder) in str(raised.value)


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
