"""The datasets of features: rows are found again, also after the store was written anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import FeatureSpec, FeatureStore
from mpfm_kedro.datasets.features import FeaturesDataset
from mpfm_kedro.errors import InputError

SPEC = FeatureSpec("resnet18", "digest", 64, ("layer4",), ("layer4",), ("mean",), 1, (1, 1, 1))
VIEWS = pd.DataFrame({"sample_id": ["a", "b"], "item": ["a", "b"], "content_hash": ["hash-a", "hash-b"], "crop": ""})
VIEWS["view"] = "original"
VALUES = {"hash-a||original": 1.0, "hash-b||original": 2.0}


def write(stores: FeatureStore, keys: list[str]) -> None:
    values = np.array([VALUES[key] for key in keys])
    with stores.open(SPEC).writing() as writer:
        writer.append(keys, values[:, None], values[:, None, None, None])


@dataclass(frozen=True)
class Extracted:
    """A plan whose work is done."""

    features: Features

    def run(self, store: FeatureStore) -> Features:
        return self.features


@pytest.fixture
def stores(tmp_path: Path) -> FeatureStore:
    write(FeatureStore(tmp_path / "store"), list(VALUES))
    return FeatureStore(tmp_path / "store")


@pytest.fixture
def dataset(stores: FeatureStore, tmp_path: Path) -> FeaturesDataset:
    dataset = FeaturesDataset(str(tmp_path / "index/features.parquet"), str(stores.root))
    assert not dataset.exists()
    dataset.save(Extracted(Features.locate(VIEWS, stores.open(SPEC))))
    assert dataset.exists()
    return dataset


def test_features_are_loaded_as_they_were_saved(dataset, stores):
    saved, loaded = Features.locate(VIEWS, stores.open(SPEC)), dataset.load()
    assert loaded.store == saved.store
    assert loaded.digest == saved.digest
    assert loaded.index.equals(saved.index)
    assert loaded.store.pooled[loaded.rows(["b", "a"])].ravel().tolist() == [2, 1]


def test_backbones_beside_are_found_again(dataset, stores):
    other = replace(SPEC, backbone="dinov2_vits14", pooled_size=2, map_shape=(2, 1, 1))
    with stores.open(other).writing() as writer:  # in another order
        writer.append(list(VALUES)[::-1], np.array([[2.0, 20], [1, 10]]), np.zeros((2, 2, 1, 1)))
    both = replace(Features.locate(VIEWS, stores.open(SPEC)), others=(Features.locate(VIEWS, stores.open(other)),))
    dataset.save(Extracted(both))
    loaded = dataset.load()
    assert [spec.backbone for spec in loaded.specs] == ["resnet18", "dinov2_vits14"]
    assert loaded.digest == both.digest != replace(both, others=()).digest
    (beside,) = loaded.others
    assert beside.store.pooled[beside.rows(["b", "a"])].tolist() == [[2, 20], [1, 10]]


def test_features_of_another_version_are_named(dataset):
    file = dataset.load().store.folder.parents[1] / "index/features.parquet"
    table = pd.read_parquet(file)
    table.drop(columns="item").to_parquet(file)
    with pytest.raises(InputError, match=r"features\.parquet is of another version; replace it with kedro run"):
        dataset.load()


def test_rows_follow_a_store_that_was_written_in_another_order(dataset, stores):
    stores.free(SPEC.digest)
    write(stores, list(VALUES)[::-1])
    loaded = dataset.load()
    assert loaded.store.pooled[loaded.rows(["b", "a"])].ravel().tolist() == [2, 1]


def test_store_that_was_deleted_is_named(dataset, stores):
    stores.free(SPEC.digest)
    with pytest.raises(InputError, match=SPEC.digest):
        dataset.load()
