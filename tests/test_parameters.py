"""Parameters: what conf holds is valid, and whatever is wrong is named before anything runs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from kedro.config import OmegaConfigLoader

from mpfm_kedro.configuration import ENVIRONMENTS
from mpfm_kedro.errors import InputError
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.parameters import Parameters
from running import kedro

PROJECT = Path(__file__).parents[1]


def load(env: str | None = None) -> dict[str, Any]:
    """As Kedro merges them, without what the project adds."""
    return OmegaConfigLoader(str(PROJECT / "conf"), env=env, **ENVIRONMENTS)["parameters"]


BASE = load()


def changed(**values: Any) -> dict[str, Any]:
    """The parameters of conf/base with some of them set; ``group__name`` is one inside a group."""
    result = copy.deepcopy(BASE)
    for name, value in values.items():
        *groups, last = name.split("__")
        target = result
        for group in groups:
            target = target[group]
        target[last] = value
    return result


def message(values: dict[str, Any]) -> str:
    with pytest.raises(InputError) as raised:
        check_parameters(values)
    return raised.value.message


def test_base_is_valid_and_complete():
    parameters = check_parameters(BASE)
    assert {*BASE, "protocol"} == set(Parameters.model_fields)
    assert parameters.image_size == BASE["image_size"]
    assert parameters.training.epochs == BASE["training"]["epochs"]


@pytest.mark.parametrize("env", sorted(p.name for p in (PROJECT / "conf").iterdir() if any(p.glob("parameters*"))))
def test_every_environment_is_valid(env):
    check_parameters(load(env))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"n_anomalis": 1}, "Unknown parameter 'n_anomalis': did you mean 'n_anomalies'?"),
        ({"datset": "elpv"}, "Unknown parameter 'datset': did you mean 'dataset'?"),
        ({"training__epoch": 3}, "Unknown parameter 'training.epoch': did you mean 'training.epochs'?"),
        ({"features__statistic": []}, "Unknown parameter 'features.statistic': did you mean 'features.statistics'?"),
        ({"epochs.": 3}, "Unknown parameter 'epochs.': did you mean 'training.epochs'?"),
        ({"epoch": 3}, "Unknown parameter 'epoch': did you mean 'training.epochs'?"),
        ({"trainig": {"epochs": 3}}, "Unknown parameter 'trainig': did you mean 'training'?"),
    ],
)
def test_unknown_name_gets_the_nearest_one(values, expected):
    assert message(changed(**values)) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", 7),
        ("n_anomalies", "ten"),
        ("n_anomalies", -1),
        ("n_anomalies", []),
        ("n_anomalies", [1, -1]),
        ("n_seeds", 0),
        ("image_size", 31),
        ("image_size", 4097),
        ("image_size", "automatic"),
        ("device", "gpu"),
        ("known_class", None),
        ("ingestion__allow_partial", "yes"),
        ("ingestion__max_unreadable_share", 1.01),
        ("ingestion__max_megapixels", 0),
        ("features__layers", []),
        ("features__layers", "auto"),
        ("features__statistics", ["mean", "median"]),
        ("features__anomaly_views", ["rot45"]),
        ("features__cutmix_views", -1),
        ("prototypes__n_prototypes", 0),
        ("repairs__coupling", "fixed"),
        ("training__learning_rate", 0),
        ("training__learning_rate", float("nan")),
        ("training__head_top_shares", [0.1, 1.5]),
        ("training__head_epochs", 0),
        ("prototypes__folds", 1),
        ("compute__processes", -1),
        ("training", 5),
    ],
)
def test_wrong_value_is_named_with_its_parameter(name, value):
    text = message(changed(**{name: value}))
    assert f"Parameter '{name.replace('__', '.')}" in text
    assert repr(value) in text or isinstance(value, list)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image_size", "auto"),
        ("n_anomalies", [10, 1]),
        ("backbone", ["resnet18", "dinov2_vits14"]),
        ("training__epochs", 1),
        ("features__anomaly_views", []),
        ("features__weights_file", "weights.pth"),
        ("compute__dask_scheduler", "tcp://host:8786"),
        ("device", "cuda"),
    ],
)
def test_allowed_value_is_taken(name, value):
    parameters: Any = check_parameters(changed(**{name: value}))
    for part in name.split("__"):
        parameters = getattr(parameters, part)
    assert parameters == value


def test_several_problems_are_all_named():
    values = changed(n_anomalis=1, n_seeds=0, training__epoch=1, training__hidden="wide", features__layers=[])
    del values["backbone"]
    text = message(values)
    named = ["n_anomalis", "n_seeds", "training.epoch", "training.hidden", "features.layers", "'backbone' is missing"]
    assert all(name in text for name in named)
    assert len(text.splitlines()) == 6


def test_kedro_run_ends_with_one_clear_line():
    ended = kedro("run", "--pipeline=ingestion", "--params=n_anomalis=1")
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "did you mean 'n_anomalies'" in said
    assert "Traceback" not in said
    assert "list_samples" not in said, "nothing runs"


@pytest.mark.parametrize(("section", "example"), [("training", "training.epochs"), ("protocol", "known_class")])
def test_a_section_that_is_set_as_a_whole_is_refused_in_plain_words(section, example):
    expected = f"Parameter '{section}' = 3: is a section; set one of its keys, for example {example}"
    assert message(changed(**{section: 3})) == expected
