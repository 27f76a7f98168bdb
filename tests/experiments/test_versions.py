"""Models of a version are used only with test data that they have not learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from test_run_data import fake_features, table

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.pieces import Piece, Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile
from mpfm_kedro.experiments.contents import learned_contents
from mpfm_kedro.experiments.protocol import make_general_runs
from mpfm_kedro.experiments.trials import plan_trials, read_trials
from mpfm_kedro.experiments.versions import check_version

SAMPLES = table(20, 8, {"dent": 25})
RUNS = make_general_runs(SAMPLES, 10, 1)
PIECE = Piece(name="only", fit="mpfm_kedro.detectors.module:fit", parameters={}, supervised=True, random=True)
SPECIFICATION = Specification(name="MPFM", kind="ours", pieces=(PIECE,), load="mpfm_kedro.detectors.module:load")


@pytest.fixture
def features(tmp_path: Path) -> Features:
    return fake_features(SAMPLES, tmp_path / "store")


def check(version_runs: pd.DataFrame, features: Features, folder: Path, items: dict[str, int] | None = None) -> None:
    """Check models that learned the training samples of ``version_runs`` against the present runs."""
    trials = plan_trials(version_runs, [SPECIFICATION])
    models = {}
    for trial in read_trials(trials, version_runs):
        learned = learned_contents([*trial.run["train_normals"], *trial.run["known_anomalies"]], features)
        file = ArtefactFile(folder / "only.safetensors")
        file.save(Artefact({}, {"features": features.store.spec.digest, "learned": learned}))
        models[trial.piece_name(PIECE)] = file
    check_version({"models": {}}, trials, models, RUNS, features, version_runs, items)


def test_copies_of_one_image_in_training_and_test_are_no_other_split(features, tmp_path):
    index = features.index.copy()
    index.loc[index["sample_id"] == "good/t000", "content_hash"] = "hash of good/000"
    check(RUNS, replace(features, index=index), tmp_path)


def test_an_image_that_was_learned_and_is_tested_now_is_named(features, tmp_path):
    before = RUNS.assign(train_normals=[[*RUNS["train_normals"][0], RUNS["test_anomalies"][0][0]]])
    with pytest.raises(InputError, match=RUNS["test_anomalies"][0][0]):
        check(before, features, tmp_path)


def test_an_item_that_was_learned_and_is_tested_now_is_refused_where_items_count(features, tmp_path):
    items = {sample: number for number, sample in enumerate(SAMPLES["sample_id"])}
    check(RUNS, features, tmp_path, items)
    shared = RUNS["test_normals"][0][0]
    items[shared] = items[RUNS["train_normals"][0][0]]
    with pytest.raises(InputError, match=f"{shared}.*group_split"):
        check(RUNS, features, tmp_path, items)
    check(RUNS, features, tmp_path)
