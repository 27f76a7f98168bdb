"""The trials of a comparison, whose settings may differ in seeds and methods."""

from __future__ import annotations

import pytest
from test_trials import SAMPLES, mpfm, parameters  # noqa: F401

from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.protocol import make_compared_runs
from mpfm_kedro.experiments.specifications import compared_specifications
from mpfm_kedro.experiments.trials import plan_compared_trials
from mpfm_kedro.parameters import ComparisonParameters, Parameters

METHODS = ["Mahalanobis", "logistic regression", "DevNet"]


@pytest.fixture
def compared(parameters: Parameters) -> ComparisonParameters:  # noqa: F811
    values = parameters.comparison.model_dump() | {"methods": METHODS, "hard": {"n_seeds": 1, "methods": METHODS[:1]}}
    return ComparisonParameters.model_validate(values)


def test_settings_have_their_own_seeds_and_methods(parameters, compared):  # noqa: F811
    runs = make_compared_runs(SAMPLES, "all", compared, 3)
    trials = plan_compared_trials(runs, compared_specifications(*mpfm(parameters), compared), compared)
    found = trials.groupby("setting").agg({"method": set, "seed": set})
    assert found["method"].to_dict() == {"general": set(METHODS), "hard": {"Mahalanobis"}}
    assert found["seed"].to_dict() == {"general": {0, 1, 2}, "hard": {0}}


def test_one_setting_alone(compared):
    for setting in ("general", "hard"):
        own = compared.model_copy(update={"settings": [setting]})
        assert set(make_compared_runs(SAMPLES, "all", own, 1)["setting"]) == {setting}
    one_class = SAMPLES[SAMPLES["defect_class"] != "hole"]
    with pytest.raises(InputError, match="needs two"):
        make_compared_runs(one_class, "all", compared.model_copy(update={"settings": ["hard"]}), 1)


def test_unknown_method_of_a_setting_is_named(parameters, compared):  # noqa: F811
    wrong = ComparisonParameters.model_validate(compared.model_dump() | {"hard": {"methods": ["DRAA"]}})
    with pytest.raises(InputError, match=r"DRAA.*DRA"):
        compared_specifications(*mpfm(parameters), wrong)
