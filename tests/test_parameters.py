"""Parameters: what conf holds is valid, and whatever is wrong is named before anything runs."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kedro.config import OmegaConfigLoader

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.parameters import Parameters

PROJECT = Path(__file__).parents[1]


def load(env: str | None = None) -> dict[str, Any]:
    loader = OmegaConfigLoader(
        str(PROJECT / "conf"),
        env=env,
        base_env="base",
        default_run_env="base",
        config_patterns={"parameters": ["parameters*"]},
        merge_strategy={"parameters": "soft"},
    )
    return loader["parameters"]


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
        (
            {"features__statistic": ["mean"]},
            "Unknown parameter 'features.statistic': did you mean 'features.statistics'?",
        ),
        ({"epoch": 3}, "Unknown parameter 'epoch': did you mean 'training.epochs'?"),
        ({"trainig": {"epochs": 3}}, "Unknown parameter 'trainig': did you mean 'training'?"),
    ],
)
def test_unknown_name_gets_the_nearest_one(values, expected):
    assert message(changed(**values)) == expected


def test_name_like_no_other_gets_the_list():
    text = message(changed(compute__qqqq=1))
    assert all(name in text for name in BASE["compute"])
    assert "did you mean" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", 7),
        ("n_anomalies", "ten"),
        ("n_anomalies", True),
        ("n_anomalies", 1.5),
        ("n_anomalies", -1),
        ("n_anomalies", -1),
        ("n_anomalies", []),
        ("n_anomalies", [1, -1]),
        ("n_anomalies", None),
        ("n_seeds", 0),
        ("n_seeds", True),
        ("n_seeds", "5"),
        ("image_size", 31),
        ("image_size", 4097),
        ("image_size", "automatic"),
        ("image_size", True),
        ("image_size", 224.5),
        ("device", "gpu"),
        ("known_class", None),
        ("ingestion__allow_partial", "yes"),
        ("ingestion__allow_partial", 1),
        ("ingestion__max_unreadable_share", 1.01),
        ("ingestion__max_unreadable_share", -0.01),
        ("ingestion__max_megapixels", 0),
        ("features__layers", []),
        ("features__layers", "auto"),
        ("features__statistics", ["mean", "median"]),
        ("features__anomaly_views", ["rot45"]),
        ("features__cutmix_views", -1),
        ("features__batch_size", 0),
        ("prototypes__n_prototypes", 0),
        ("repairs__coupling", "fixed"),
        ("training__learning_rate", 0),
        ("training__learning_rate", float("nan")),
        ("training__head_top_shares", [0.1, 1.5]),
        ("training__head_top_shares", []),
        ("training__head_epochs", 0),
        ("training__head_members", 0),
        ("prototypes__top_share", 0),
        ("training__epochs", 0),
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
        ("image_size", 32),
        ("image_size", "auto"),
        ("training__epochs", 1),
        ("training__learning_rate", 1),
        ("features__cutmix_views", 0),
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


@pytest.mark.parametrize("value", [1, 10, [10, 1]])
def test_one_or_several_numbers_of_anomalies_are_taken(value):
    check_parameters(changed(n_anomalies=value))


@pytest.mark.parametrize("value", ["resnet18", "timm/resnet18", ["resnet18", "dinov2_vits14"]])
def test_one_or_several_backbones_are_taken(value):
    check_parameters(changed(backbone=value))


@pytest.mark.parametrize(("value", "reason"), [([], "at least 1"), (18, "valid string"), (["a", "a"], "backbone once")])
def test_backbones_that_are_no_names(value, reason):
    text = message(changed(backbone=value))
    assert "backbone" in text and reason in text


@pytest.mark.parametrize("value", ["ten", -1, [1, -1], []])
def test_a_wrong_number_of_anomalies_is_said_without_the_checker_s_own_names(value):
    text = message(changed(n_anomalies=value))
    assert "constrained" not in text
    assert "list[" not in text


def test_several_problems_are_all_named():
    values = changed(n_anomalis=1, n_seeds=0, training__epoch=1, training__hidden="wide", features__layers=[])
    del values["backbone"]
    text = message(values)
    for name in (
        "n_anomalis",
        "n_seeds",
        "training.epoch",
        "training.hidden",
        "features.layers",
        "'backbone' is missing",
    ):
        assert name in text
    assert len(text.splitlines()) == 6


@given(st.text(min_size=1, max_size=20).filter(lambda name: name not in BASE))
@settings(max_examples=20, deadline=None)
def test_no_unknown_name_passes(name):
    assert f"Unknown parameter '{name}'" in message({**BASE, name: 1})


def test_parameters_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        check_parameters(BASE).n_seeds = 3


def kedro_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DO_NOT_TRACK": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "kedro", "run", *arguments]
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_kedro_run_ends_with_one_clear_line():
    ended = kedro_run("--pipeline=ingestion", "--params=n_anomalis=1")
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "did you mean 'n_anomalies'" in said
    assert "Traceback" not in said
    assert "list_samples" not in said, "nothing runs"


def test_a_name_without_its_group_is_found_in_it():
    with pytest.raises(InputError, match=r"Unknown parameter 'epochs': did you mean 'training\.epochs'"):
        check_parameters(changed(epochs=2))


def test_a_wrong_number_in_a_list_is_named_as_it_was_typed():
    with pytest.raises(InputError, match="Parameter 'n_anomalies' = -1"):
        check_parameters(changed(n_anomalies=-1))


@pytest.mark.parametrize(("section", "example"), [("training", "training.epochs"), ("protocol", "known_class")])
def test_a_section_that_is_set_as_a_whole_is_refused_in_plain_words(section, example):
    expected = f"Parameter '{section}' = 3: is a section; set one of its keys, for example {example}"
    with pytest.raises(InputError) as raised:
        check_parameters(changed(**{section: 3}))
    assert str(raised.value) == expected


def test_a_reason_of_our_own_has_no_prefix_of_the_checker():
    with pytest.raises(InputError, match="'image_size' = 'big': should be auto"):
        check_parameters(changed(image_size="big"))
