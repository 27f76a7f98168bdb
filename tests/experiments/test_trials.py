"""Trials are found again by what they were made from, and by nothing less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_run_data import fake_features, table

from mpfm_kedro.errors import InputError
from mpfm_kedro.backbones.store import Features
from mpfm_kedro.parameters import Parameters, check_parameters
from mpfm_kedro.experiments.protocol import records
from mpfm_kedro.experiments.trials import _content, _key, _scorable, _shared, make_trial_runs, tabulate_methods
from mpfm_kedro.experiments.specifications import Variant, ablated_variants, compared_methods

SAMPLES = table(20, 8, {"dent": 12, "hole": 11})


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    from kedro.config import OmegaConfigLoader

    conf = str(Path(__file__).parents[2] / "conf")
    loader = OmegaConfigLoader(conf, base_env="base", default_run_env="base")
    return check_parameters(loader["parameters"])


@pytest.fixture
def features(tmp_path: Path) -> Features:
    return fake_features(SAMPLES, tmp_path)


def key(variant: Variant, run: dict[str, Any], features: Features, parameters: Parameters) -> dict[str, Any]:
    runs = records(make_trial_runs(SAMPLES, "all", [10, 1], 2, 0))
    scored = _scorable("", runs) if _shared(variant) else [*run["test_normals"], *run["test_anomalies"]]
    names = ("prototypes", "repairs", "training")
    changed = {name: variant.changed(name, getattr(parameters, name)) for name in names}
    return _content(run, scored, features, _shared(variant)) | _key(variant, changed)


def named(parameters: Parameters, name: str) -> Variant:
    return next(variant for variant in compared_methods(parameters.comparison) if variant.name == name)


def test_runs_cover_both_settings_under_unique_names():
    runs = make_trial_runs(SAMPLES, "all", [10, 1], 2, 0)
    assert runs["run"].is_unique
    assert runs.groupby("setting").size().to_dict() == {"general": 4, "hard": 8}


def test_one_class_has_the_general_setting_only():
    runs = make_trial_runs(table(20, 8, {"dent": 25}), "all", [10], 2, 0)
    assert set(runs["setting"]) == {"general"}


def test_a_known_class_that_is_not_there_is_an_error():
    with pytest.raises(InputError, match="known_class"):
        make_trial_runs(SAMPLES, "dnet", [10], 2, 0)


@pytest.mark.parametrize(
    ("name", "distinct"),
    [("MPFM", 12), ("DRA", 12), ("logistic regression", 12), ("mixture of modes", 2), ("Mahalanobis", 1)],
)
def test_runs_share_a_trial_only_where_nothing_differs(features, parameters, name, distinct):
    runs = records(make_trial_runs(SAMPLES, "all", [10, 1], 2, 0))
    keys = [str(key(named(parameters, name), run, features, parameters)) for run in runs]
    assert len(set(keys)) == distinct


@pytest.mark.parametrize("name", ["MPFM", "MPFM, 0 iterations", "DRA", "Mahalanobis"])
@pytest.mark.parametrize("role", ["test_normals", "test_anomalies", "train_normals"])
def test_another_image_under_the_same_name_is_another_trial(features, parameters, name, role):
    run = records(make_trial_runs(SAMPLES, "all", [10, 1], 2, 0))[0]
    index = features.index.copy()
    index.loc[index["sample_id"] == run[role][0], "content_hash"] = "another"
    variant = named(parameters, name)
    assert key(variant, run, replace(features, index=index), parameters) != key(variant, run, features, parameters)


def test_every_variant_of_the_ablation_is_a_trial_of_its_own(features, parameters):
    run = records(make_trial_runs(SAMPLES, "all", [10, 1], 2, 0))[0]
    variants = ablated_variants()
    assert len({str(key(variant, run, features, parameters)) for variant in variants}) == len(variants)


def test_budgets_name_the_steps_of_training(parameters):
    training = parameters.training.model_copy(update={"epochs": 7, "iterations_per_epoch": 300})
    methods = tabulate_methods(compared_methods(parameters.comparison), training).set_index("method")["budget"]
    assert methods["MPFM"] == methods["DRA"] == "2,100 steps of 48"
    assert "2,100" not in methods["Mahalanobis"]
