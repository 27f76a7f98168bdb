"""What a run learns from: never a row of a test sample, nor of a view of one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEY, FeatureSpec, FeatureStore
from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.experiments.protocol import make_general_runs, make_hard_runs, records
from mpfm_kedro.experiments.run_data import training_data
from mpfm_kedro.parameters import FeatureParameters
from mpfm_kedro.pipelines.features.nodes import plan_views

SPEC = FeatureSpec("resnet18", "digest", 64, ("layer4",), ("layer4",), ("mean",), 2, (1, 1, 1))
PARTS = ["normals", "pseudo", "anomalies"]


CONF = Path(__file__).parents[2] / "conf" / "base"
BASE = yaml.safe_load((CONF / "parameters_features.yml").read_text())["features"]


def parameters(**changes: Any) -> FeatureParameters:
    return FeatureParameters(**(BASE | {"cutmix_views": 2, "anomaly_views": ["hflip", "rot180"]} | changes))


def table(n_train: int, n_test: int, classes: dict[str, int]) -> pd.DataFrame:
    rows = [(f"good/{i:03}", "", "train", 0) for i in range(n_train)]
    rows += [(f"good/t{i:03}", "", "test", 0) for i in range(n_test)]
    rows += [(f"{name}/{i:03}", name, "anomaly", 1) for name, number in classes.items() for i in range(number)]
    samples = pd.DataFrame(rows, columns=["sample_id", "defect_class", "split", "label"])
    samples = samples.assign(dataset="synthetic", category="", problem="", crop="", pixel_range="")
    return samples.assign(path=samples["sample_id"], content_hash="hash of " + samples["sample_id"])


def fake_features(samples: pd.DataFrame, folder: Path, order: int = 0, **changes: Any) -> Features:
    """A store whose rows, in some order of work, hold their own numbers."""
    views = plan_views(samples, SPEC.image_size, parameters(**changes))
    keys = views[KEY].agg("|".join, axis=1)
    worked = np.random.default_rng(order).permutation(keys.unique())
    rows = np.arange(len(worked))
    with FeatureStore(folder).open(SPEC).writing() as writer:
        writer.append(list(worked), np.stack([rows, -rows], 1), rows[:, None, None, None] % 2000)
    store = FeatureStore(folder).open(SPEC)
    return Features(views[["sample_id", *KEY]].assign(row=keys.map(store.row_of)), store)


def owners(features: Features) -> dict[int, tuple[str, str]]:
    index = features.index
    return dict(zip(index["row"], zip(index["sample_id"], index["view"], strict=True), strict=True))


def check_parts(run: dict[str, Any], data: TrainingData, features: Features) -> None:
    owner = owners(features)
    seen = {part: [owner[row] for row in getattr(data, part).rows] for part in PARTS}
    tested = {*run["test_normals"], *run["test_anomalies"]}
    assert not tested & {sample for part in seen.values() for sample, _ in part}
    assert seen["normals"] == [(sample, "original") for sample in run["train_normals"]]
    assert all(view.startswith("cutmix-") for _, view in seen["pseudo"])
    assert not any(view.startswith("cutmix-") for _, view in seen["anomalies"])
    assert seen["anomalies"][: data.n_known] == [(sample, "original") for sample in run["known_anomalies"]]
    for part, originals in (("pseudo", run["train_normals"]), ("anomalies", run["known_anomalies"])):
        assert [originals[place] for place in getattr(data, part).source] == [sample for sample, _ in seen[part]]
    for part in PARTS:
        rows = getattr(data, part)
        np.testing.assert_array_equal(rows.pooled, np.stack([rows.rows, -rows.rows], 1).reshape(-1, 2))
        np.testing.assert_array_equal(rows.map_batch().numpy().ravel(), rows.rows % 2000)


@given(
    n_train=st.integers(2, 25),
    n_test=st.integers(1, 6),
    classes=st.fixed_dictionaries({"dent": st.integers(10, 14), "hole": st.integers(2, 12)}),
    wanted=st.integers(1, 10),
    cutmix_views=st.integers(0, 2),
)
@settings(max_examples=25, deadline=None)
def test_no_row_of_a_test_sample_reaches_training(n_train, n_test, classes, wanted, cutmix_views):
    samples = table(n_train, n_test, classes)
    with tempfile.TemporaryDirectory() as folder:
        features = fake_features(samples, Path(folder), cutmix_views=cutmix_views)
        runs = records(make_general_runs(samples, wanted, 2)) + records(make_hard_runs(samples, "dent", wanted, 2))
        for run in runs:
            data = training_data(run, features)
            check_parts(run, data, features)
            assert len(data.pseudo) == cutmix_views * len(data.normals)
            assert len(data.anomalies) == 3 * len(run["known_anomalies"])


SAMPLES = table(20, 5, {"dent": 14, "hole": 12})


@pytest.mark.parametrize("anomaly_views", [[], ["hflip"], ["rot90", "vflip", "rot180"]])
def test_only_anomalies_are_augmented(anomaly_views, tmp_path):
    features = fake_features(SAMPLES, tmp_path, anomaly_views=anomaly_views)
    (run,) = records(make_hard_runs(SAMPLES, "dent", 4, 1))
    data = training_data(run, features)
    check_parts(run, data, features)
    owner = owners(features)
    assert {owner[row][1] for row in data.anomalies.rows} == {"original", *anomaly_views}
    assert len(data.anomalies) == (1 + len(anomaly_views)) * len(run["known_anomalies"])


def test_other_backbones_have_the_same_images_in_the_same_order(tmp_path):
    first, other = fake_features(SAMPLES, tmp_path / "a"), fake_features(SAMPLES, tmp_path / "b", order=1)
    (run,) = records(make_hard_runs(SAMPLES, "dent", 4, 1))
    data = training_data(run, replace(first, beside=(other,)))
    alone = training_data(run, other)
    check_parts(run, data, first)
    for part in PARTS:
        (found,), expected = getattr(data, part).beside, getattr(alone, part)
        assert found.rows.tolist() == expected.rows.tolist() != getattr(data, part).rows.tolist()
        np.testing.assert_array_equal(found.pooled, expected.pooled)
        np.testing.assert_array_equal(found.source, getattr(data, part).source)
