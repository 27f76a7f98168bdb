"""The study file: what it means for each dataset, and errors that name file, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.protocol.study_file import read_study
from mpfm_kedro.study_sessions import plan_comparisons

STUDIES = Path(__file__).parents[2] / "conf/studies"


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.yml"
    file.write_text(dedent(text))
    return str(file)


SCREW = """
    n_anomalies: [10, 1]
    n_seeds: 5
    methods: [all]
    parameters: {device: cpu}
    hard: {n_anomalies: 10}
    datasets:
      - elpv
      - dataset: mvtec_ad
        name: screw
        category: screw
        data_root: /data
        n_seeds: 3
        hard: {n_seeds: 2, methods: [MPFM, DRA]}
        parameters: {image_size: 448}
"""


def test_a_dataset_takes_precedence_over_the_study_and_a_setting_over_all_settings(tmp_path):
    plain, screw = read_study(write(tmp_path, SCREW))
    both = {"n_anomalies": [10, 1], "methods": ["all"]}
    assert plain == {
        "dataset": "elpv",
        "name": "auto",
        "category": "all",
        "n_seeds": 5,
        "device": "cpu",
        "comparison": both | {"general": {}, "hard": {"n_anomalies": 10}},
    }
    assert screw == {
        "dataset": "mvtec_ad",
        "name": "screw",
        "category": "screw",
        "data_root": "/data",
        "n_seeds": 3,
        "device": "cpu",
        "image_size": 448,
        "comparison": both | {"general": {}, "hard": {"n_anomalies": 10, "n_seeds": 2, "methods": ["MPFM", "DRA"]}},
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("datasets: [elpw]", ["datasets[elpw].dataset", "'elpw'", "headct"]),
        ("datasets: []", ["datasets", "[]", "1 item"]),
        ("n_seeds: 5", ["datasets = None", "1 item"]),
        ("{datasets: [5]}", ["datasets[0]", "keys and values"]),
        ("{datasets: [elpv], hard: 5}", ["hard: should have keys and values", "found 5"]),
        ("{datasets: [elpv], n_seeds: 0}", ["datasets[elpv]", "'n_seeds' = 0", "greater than or equal to 1"]),
        ("{datasets: [elpv], n_sedes: 3}", ["unknown key n_sedes", "n_seeds"]),
        ("{datasets: [{dataset: elpv, hard: {seeds: 3}}]}", ["datasets[elpv].hard.seeds", "n_seeds"]),
        ("{datasets: [{dataset: elpv, name: mine, seed: 3}]}", ["datasets[mine].seed", "category"]),
        ("{datasets: [elpv], settings: [easy]}", ["comparison.settings", "'easy'", "'general' or 'hard'"]),
        ("{datasets: [elpv], parameters: {n_seeds: 3}}", ["parameters", "n_seeds: has its own place"]),
        ("[elpv]", ["keys and values", "['elpv']"]),
        ("{datasets: [", ["is not YAML"]),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(text, named, tmp_path):
    with pytest.raises(InputError) as raised:
        plan_comparisons({"data_root": str(tmp_path)}, "test", write(tmp_path, text))
    assert str(raised.value).startswith(str(tmp_path / "mine.yml"))
    assert all(name in str(raised.value) for name in named), str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"'study' = '/nowhere\.yml'"):
        read_study("/nowhere.yml")
    with pytest.raises(InputError, match=r"'study' is missing.*small\.yml"):
        read_study(None)


def test_the_studies_of_the_project_are_the_papers_and_a_small_one():
    paper, small = (read_study(str(STUDIES / f"{name}.yml")) for name in ("paper", "small"))
    nine = {"mvtec_ad", "optical", "sdd", "aitex", "elpv", "mastcam", "hyper_kvasir", "brainmri", "headct"}
    assert {one["dataset"] for one in paper} == nine
    assert {one["dataset"] for one in small} == {"elpv", "brainmri", "headct"}
    for one in [*paper, *small]:
        assert (one["n_seeds"], one["comparison"]["n_anomalies"], one["comparison"]["methods"]) == (5, [10, 1], ["all"])
    assert all(one["comparison"]["settings"] == ["general", "hard"] for one in small)
