"""What a run learns from: never a row of a test sample, nor of a view of one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.protocol.data import learned_digest, training_data
from mpfm_kedro.protocol.runs import make_general_runs, make_hard_runs, records
from protocol.small_tables import fake_features, protocol, sample_table

PARTS = ["normals", "pseudo", "anomalies"]
SAMPLES = sample_table({"dent": 14, "hole": 12}, 20, 5)


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
    samples = sample_table(classes, n_train, n_test)
    with tempfile.TemporaryDirectory() as folder:
        features = fake_features(samples, Path(folder), cutmix_views=cutmix_views)
        hard = protocol(wanted, 2, known_class="dent")
        runs = records(make_general_runs(samples, protocol(wanted, 2))) + records(make_hard_runs(samples, hard))
        for run in runs:
            data = training_data(run, features)
            check_parts(run, data, features)
            assert len(data.pseudo) == cutmix_views * len(data.normals)
            assert len(data.anomalies) == 3 * len(run["known_anomalies"])


@pytest.mark.parametrize("anomaly_views", [[], ["hflip"], ["rot90", "vflip", "rot180"]])
def test_only_anomalies_are_augmented(anomaly_views, tmp_path):
    features = fake_features(SAMPLES, tmp_path, anomaly_views=anomaly_views)
    (run,) = records(make_hard_runs(SAMPLES, protocol(4, known_class="dent")))
    data = training_data(run, features)
    check_parts(run, data, features)
    assert {owners(features)[row][1] for row in data.anomalies.rows} == {"original", *anomaly_views}
    assert len(data.anomalies) == (1 + len(anomaly_views)) * len(run["known_anomalies"])


def test_other_backbones_have_the_same_images_in_the_same_order(tmp_path):
    first, other = fake_features(SAMPLES, tmp_path / "a"), fake_features(SAMPLES, tmp_path / "b", order=1)
    (run,) = records(make_hard_runs(SAMPLES, protocol(4, known_class="dent")))
    data, alone = training_data(run, replace(first, others=(other,))), training_data(run, other)
    check_parts(run, data, first)
    for part in PARTS:
        (found,), expected = getattr(data, part).others, getattr(alone, part)
        assert found.rows.tolist() == expected.rows.tolist() != getattr(data, part).rows.tolist()
        np.testing.assert_array_equal(found.pooled, expected.pooled)
        np.testing.assert_array_equal(found.source, getattr(data, part).source)


def test_the_digest_of_what_is_learned_names_images_and_not_the_order_of_work(tmp_path):
    features, reordered = fake_features(SAMPLES, tmp_path / "a"), fake_features(SAMPLES, tmp_path / "b", order=1)
    learned = ("good/000", "dent/001")

    def digest(names: tuple[str, ...], pseudo: bool, of: Features) -> str:
        return learned_digest(names, False, pseudo, of)

    assert digest(learned, False, features) == digest(learned, False, reordered)
    assert digest(learned, False, features) != digest(learned, True, features)
    assert digest(learned, False, features) != digest(("good/000", "dent/002"), False, features)
    index = features.index.copy()
    index.loc[index["sample_id"] == "dent/001", "content_hash"] = "another image"
    changed = replace(features, index=index)
    assert digest(learned, False, features) != digest(learned, False, changed)
    assert digest(("good/000",), True, features) == digest(("good/000",), True, changed)
