"""What a study needs, from the rates of this machine, and only of what is not cached."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from test_run_data import fake_features
from test_trials import SAMPLES, mpfm, parameters  # noqa: F401

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.pieces import Piece
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import Cache
from mpfm_kedro.experiments.expected import EXPECTED
from mpfm_kedro.experiments.forecasting import Need, describe_need, forecast_trials
from mpfm_kedro.experiments.protocol import make_compared_runs
from mpfm_kedro.experiments.rates import NEWEST, measured_rates
from mpfm_kedro.experiments.specifications import compared_specifications
from mpfm_kedro.experiments.trials import plan_compared_trials, plan_pieces, read_trials
from mpfm_kedro.parameters import ComparisonParameters, ComputeParameters, Parameters

COMPUTE = ComputeParameters(processes=2, dask_scheduler=None)
METHODS = ["Mahalanobis", "logistic regression", "DevNet"]


def piece(name: str = "devnet", **values: int) -> Piece:
    return Piece(name=name, fit="a:b", parameters=values, supervised=True, random=True, seconds=10)


def fitted(cache: Cache, name: str, number: int, seconds: float, expected: float = 10, **values: int) -> Path:
    entry = cache.entry(name, f"{number:04}")
    entry.save(Artefact({}, {"seconds": seconds, EXPECTED: expected, "parameters": values}))
    return entry.path


def test_slowness_is_that_of_the_same_parameters_else_of_the_piece_else_of_all(tmp_path):
    cache = Cache(tmp_path)
    assert measured_rates(cache).slowness(piece()) == 1
    fitted(cache, "devnet", 1, 20, steps=10)
    fitted(cache, "devnet", 2, 80, steps=1000)
    fitted(cache, "flos", 3, 5)
    fitted(cache, "flos", 4, 100, expected=0)  # of a version that made no forecasts
    rates = measured_rates(cache)
    assert rates.slowness(piece(steps=1000)) == 8
    assert rates.slowness(piece(steps=5)) == 5
    assert rates.slowness(piece("flos")) == 0.5
    assert rates.slowness(piece("new")) == pytest.approx(105 / 30)


def test_short_fits_of_other_parameters_are_no_measure(tmp_path):
    cache = Cache(tmp_path)
    fitted(cache, "devnet", 1, 2.0, expected=0.03, steps=20)  # a small trial: most of it is the start of a process
    assert measured_rates(cache).slowness(piece(steps=500)) == 1
    fitted(cache, "flos", 2, 30)
    assert measured_rates(cache).slowness(piece(steps=500)) == 3
    assert measured_rates(cache).slowness(piece(steps=20)) == pytest.approx(2.0 / 0.03)


def test_only_the_newest_fits_count_and_a_damaged_file_does_not(tmp_path):
    cache = Cache(tmp_path)
    for number in range(NEWEST + 5):
        path = fitted(cache, "devnet", number, 10 if number >= 5 else 1000)
        os.utime(path, (number, number))
    (tmp_path / "devnet-damaged.safetensors").write_bytes(b"nothing")
    assert measured_rates(cache).slowness(piece()) == pytest.approx(1)


def test_scoring_is_measured_per_sample(tmp_path):
    cache = Cache(tmp_path)
    for number, seconds in ((10, 1.0), (30, 7.0)):
        cache.entry("scores", str(number)).save(Artefact({"score": torch.zeros(number)}, {"seconds": seconds}))
    assert measured_rates(cache).seconds_per_score == pytest.approx(8 / 40)


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


def test_what_is_cached_needs_nothing(parameters, compared, tmp_path):  # noqa: F811
    features, cache = fake_features(SAMPLES, tmp_path / "store"), Cache(tmp_path / "cache")
    runs = make_compared_runs(SAMPLES, "all", compared, 2)
    specifications = compared_specifications(*mpfm(parameters), compared)
    trials = read_trials(plan_compared_trials(runs, specifications, compared), runs)
    before = forecast_trials(trials, features, cache, "cpu", COMPUTE)
    # Mahalanobis once for all; the others in general, two M and two seeds, of which logistic regression uses no seed
    assert before["trials"] == 2 * 2 * 3 + 2 * 2
    assert before["pieces"] == before["new_pieces"] == 1 + 4 + 4
    assert before["at_once"] == 2 and not before["measured"]
    assert before["fit_seconds"] > 0 and before["score_seconds"] > 0 and before["disk_bytes"] > 0
    for task in plan_pieces(trials, features, cache, {}, "cpu").values():
        task.entry.save(Artefact({}, task.details | {"seconds": 2 * task.details[EXPECTED]}))
    after = forecast_trials(trials, features, cache, "cpu", COMPUTE)
    assert after["new_pieces"] == 1
    assert 0 < after["fit_seconds"] < before["fit_seconds"] and after["measured"]


def test_a_need_in_words_and_in_a_file(tmp_path):
    numbers = dict.fromkeys(Need.__dataclass_fields__, 0) | {"trials": 1200, "fit_seconds": 7200.0, "at_once": 2}
    need = Need(**numbers | {"extraction_seconds": 3600.0, "disk_bytes": 5 * 10**9, "measured": True})
    assert need.seconds == 7200
    assert "elpv: 1,200 trials" in describe_need("elpv", need) and "2.0 h, 5.0 GB" in describe_need("elpv", need)
    little = Need(**asdict(need) | {"disk_bytes": 12_345})
    assert "12.3 kB of disk" in describe_need("elpv", little)
    on_dask = Need(**asdict(need) | {"at_once": 0})
    assert "3.0 h on one core" in describe_need("elpv", on_dask)
