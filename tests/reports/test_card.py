"""The card as a page: everything a stranger needs, and nothing that a name could break."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.datasets.inspection import SummariesDataset
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.inspection.model import HeldOutScores, Model, load_model
from mpfm_kedro.inspection.production import describe_threshold, describe_weights
from mpfm_kedro.pipelines.fit import summarise_model
from mpfm_kedro.reports.model import write_card
from production_models import held_out_scores


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Model:
    return load_model(model_folder)


def test_the_card_says_what_it_is(model: Model):
    page = write_card(model)
    texts = (
        "48 held-out normal items",
        "24 (scratch 12, spot 12)",
        "Apache-2.0",
        "resnet18",
        "BSD-3-Clause",
        "64 × 64",
    )
    assert [text for text in texts if text not in page] == []
    assert all(digest in page for digest in model.card["files"].values())
    assert "general_setting" in page  # there was no evaluation yet
    assert "2,995 held-out normals are needed" in page


def test_rates_that_can_be_guaranteed_are_distinguished(model: Model):
    scores = np.random.default_rng(0).normal(size=400)
    enough = replace(model, calibration=held_out_scores(scores, np.empty(0)))
    rows = [row for row in write_card(enough).split("<tr") if "%</td>" in row.replace(" ", "")]
    achievable = {row.split("<td>")[1].split("<")[0]: "<td>yes</td>" in row for row in rows}
    assert achievable == {"0.1 %": False, "0.5 %": False, "1 %": True, "2 %": True, "5 %": True}


def test_defects_are_counted_by_item(model: Model):
    table = model.calibration.table
    held_out = HeldOutScores(table.assign(item=table["item"].mask(table["defect_class"] == "spot", "part")))
    page = write_card(replace(model, card=model.card | describe_threshold(held_out, 0.05, 0.95)))
    assert "of 13 known defective items (24 images) are missed" in page
    for name, number in {"all": "13 (24 images)", "scratch": "12", "spot": "1 (12 images)"}.items():
        assert f"<td>{name}</td>\n      <td>{number}</td>" in page


def test_evaluation_and_what_was_learned_are_shown_and_escaped(model: Model):
    figures = {"method": "MPFM", "category": "", "n_anomalies": 10, "n_seeds": 5}
    figures |= {"auc_mean": 0.932, "auc_std": 0.004, "ap_mean": 0.966, "ap_std": 0.002}
    of_class = {"general": "", "hard": "mono"}
    evaluation = {name: [figures | {"known_class": known}] for name, known in of_class.items()}
    learned = [{"file": "f", "label": 1, "content_hash": "h", "origin": "<b>.png", "added": "2026-01-02"}]
    page = write_card(replace(model, card=model.card | {"evaluation": evaluation, "learned": learned}))
    assert page.count("0.932 ± 0.004") == 2 and "<td>hard</td><td>MPFM</td><td>mono</td><td>10</td>" in page
    assert "&lt;b&gt;.png" in page and "<b>.png" not in page and "<td>anomaly</td>" in page


def test_recalls_of_a_setting_are_shown_where_they_are_defined(model: Model, tmp_path: Path):
    row = {"method": "MPFM", "category": "", "known_class": "", "n_anomalies": 10, "n_seeds": 5}
    row |= {"auc_mean": 0.932, "auc_std": 0.004, "ap_mean": 0.966, "ap_std": 0.002}
    row |= {"recall_1_mean": np.nan, "recall_1_std": np.nan, "recall_5_mean": 0.731, "recall_5_std": 0.025}
    (tmp_path / "general").mkdir()
    pd.DataFrame([row]).to_csv(tmp_path / "general/summary.csv", index=False)
    evaluation = SummariesDataset(str(tmp_path)).load()
    page = write_card(replace(model, card=model.card | {"evaluation": evaluation}))
    assert "<th>AP</th><th>recall at 1 %</th><th>recall at 5 %</th>" in page
    assert "<td>0.966 ± 0.002</td><td>undefined</td><td>0.731 ± 0.025</td>" in page
    json.dumps(evaluation, allow_nan=False)  # the card is read elsewhere, too


def test_a_score_that_counts_nothing_is_said(model: Model):
    weights = [{"backbone": 0, "mode": mode} | dict.fromkeys(PART_COLUMNS, 0.4) | {"score_n": 0.0} for mode in range(2)]
    useless = replace(model, card=model.card | {"score_weights": weights})
    assert "score_n counts nothing" in summarise_model(useless)
    assert write_card(useless).count("<td>0.4</td>") == 6
    weights[0]["score_n"] = 0.1
    assert "score_n counts nothing in 1 of 2 modes: it does not tell" in summarise_model(useless)
    weights[1]["score_n"] = 0.1
    assert "counts nothing" not in summarise_model(useless)
    calibration = model.detector["calibration"]
    two_scores = calibration.details["parameters"] | {"scores": ["g", "r"]}
    added = describe_weights(Artefact(calibration.tensors, {**calibration.details, "parameters": two_scores}))
    assert all(row.keys() & {*PART_COLUMNS} == {"score_g", "score_r"} for row in added)
    for rows in ([weights[0] | {"score_n": 0.1}], added):  # a score that is not added is no useless one
        assert "counts nothing" not in summarise_model(replace(model, card=model.card | {"score_weights": rows}))
