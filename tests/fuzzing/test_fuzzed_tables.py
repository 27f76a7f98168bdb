"""Label files, parameters, study files, logs and tables of anybody: a valid result or one clear error, nothing else."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from fuzzing.conftest import inputs
from fuzzing.seeds import JSON, SEEDS, damaged, set_somewhere
from mpfm_kedro.atomic import load_table, save_table
from mpfm_kedro.configuration import project_loader
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.predictions import PredictionLog
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.protocol.study_file import read_study
from mpfm_kedro.sources import elpv, headct, optical
from mpfm_kedro.sources.layout import Layout

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of every odd tag

LABELS = {
    elpv: b"images/cell0001.png  1.0  mono\nimages/cell0002.png  0.3333333333333333  poly\n",
    headct: b"id, hemorrhage\n0, 1\n1, 0\n 12,0\n",
    optical: b"1\r\n1\t0\t0001.PNG\t0\t0\r\n2\t1\t0002.PNG\t0\t0002_label.PNG\r\n",
}


@inputs(9_000)
@pytest.mark.parametrize("source", LABELS, ids=lambda source: source.__name__.rpartition(".")[2])
@given(seed=SEEDS)
def test_labels_are_read_or_refused(source, seed, tmp_path, attempt):
    file, layout = tmp_path / "labels.csv", Layout(source.SOURCE.name, source.SOURCE.title, tmp_path)
    file.write_bytes(damaged(LABELS[source], seed))
    attempt(lambda: source.read_labels(layout, *[file] * (source is optical)), InputError)


@cache
def parameters() -> dict:
    return dict(project_loader(env="test")["parameters"])


@inputs(6_000)
@given(data=st.data())
def test_parameters_are_checked(data, attempt):
    """Any value in the place of any parameter, or beside it."""
    values = deepcopy(parameters())
    group = values
    while True:
        known = st.sampled_from(sorted(group)) if group else st.nothing()
        name = data.draw(known | st.text(max_size=8))
        if isinstance(group.get(name), dict) and data.draw(st.booleans()):
            group = group[name]
            continue
        group[name] = data.draw(JSON)
        break
    attempt(lambda: check_parameters(values), InputError)


@cache
def study() -> bytes:
    return (Path(__file__).parents[2] / "conf/studies/paper.yml").read_bytes()


@inputs(3_000)
@given(data=st.data())
def test_a_study_file_with_odd_values_or_damage_is_read_or_refused(data, tmp_path, attempt):
    odd = yaml.safe_load(study())
    set_somewhere(data, odd)
    for content in (json.dumps(odd).encode(), damaged(study(), data.draw(SEEDS))):  # JSON is YAML
        (tmp_path / "study.yml").write_bytes(content)
        attempt(lambda: read_study(str(tmp_path / "study.yml")), InputError)


@inputs(5_000)
@given(seed=SEEDS)
def test_a_log_of_predictions_is_read_whatever_is_in_it(seed, tmp_path, attempt):
    whole, log = PredictionLog(tmp_path / "whole.jsonl"), PredictionLog(tmp_path / "log.jsonl")
    row = {"path": "/a.png", "size": 1, "modified": 2, "score": 0.5, "error": ""}
    if not whole.file.exists():
        whole.append([row, row | {"path": "/b.png"}])
    log.file.write_bytes(damaged(whole.file.read_bytes(), seed))

    def read() -> None:
        for path, found in log.read({"/a.png", "/b.png"}).items():
            assert found["path"] == path and (found["error"] or isinstance(found["score"], float))

    attempt(read)


@inputs(4_000)
@given(seed=SEEDS)
@example(seed=2588).via("another name of a column")
@example(seed=7669).via("no rows")
def test_a_table_is_read_as_it_was_written_or_refused(seed, tmp_path, attempt):
    table = pd.DataFrame({"sample": ["a", "b"], "score": [0.5, 2.0], "seconds": [1, 2]})
    if not (tmp_path / "table.parquet").exists():
        save_table(table, tmp_path / "table.parquet")
    content = (tmp_path / "table.parquet").read_bytes()
    (tmp_path / "damaged.parquet").write_bytes(damaged(content, seed))

    def read() -> None:
        try:
            found = load_table(tmp_path / "damaged.parquet")
        except InputError as error:
            assert re.search(r"damaged\.parquet is damaged .*rerun", str(error))
            raise
        assert found.equals(table)

    attempt(read, InputError)


@inputs(2_000)
@given(seed=SEEDS)
def test_a_foreign_table_is_read_or_refused(seed, tmp_path, attempt):
    """Without a checksum: whatever pyarrow makes of it."""
    if not (tmp_path / "table.parquet").exists():
        pd.DataFrame({"sample": ["a", "b"], "score": [0.5, 2.0]}).to_parquet(tmp_path / "table.parquet")
    content = (tmp_path / "table.parquet").read_bytes()
    (tmp_path / "damaged.parquet").write_bytes(damaged(content, seed))
    attempt(lambda: load_table(tmp_path / "damaged.parquet"), InputError)
