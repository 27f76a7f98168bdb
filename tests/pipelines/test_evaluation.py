"""Metrics are scikit-learn's; the ± of a mean over classes is the spread over seeds of that mean."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from mpfm_kedro.io.artefacts import ArtefactFile
from mpfm_kedro.model.artefact import Artefact
from mpfm_kedro.pipelines.evaluation.nodes import measure_runs, summarise

CONTRACT = [
    "dataset",
    "category",
    "method",
    "known_class",
    "n_anomalies",
    "auc_mean",
    "auc_std",
    "ap_mean",
    "ap_std",
    "n_seeds",
]
METHODS = ["MPFM", "MPFM, 0 iterations"]


def model(path: Path, seconds: float) -> ArtefactFile:
    file = ArtefactFile(path)
    file.save(Artefact({"weight": torch.zeros(1)}, {"seconds": seconds}))
    return file


def test_metrics_of_a_run_are_scikit_learn_s(tmp_path):
    rng = np.random.default_rng(0)
    description = {"dataset": "made", "category": "", "setting": "hard", "known_class": "dent", "n_anomalies": 10}
    runs = pd.DataFrame([{"run": f"M10-seed{seed}", **description, "seed": seed} for seed in range(2)])
    parts = []
    for run in runs["run"]:
        for method in METHODS:
            label = np.array([0] * 20 + [1] * 7)
            scores = rng.normal(size=27).round(1) + label
            parts.append(pd.DataFrame({"run": run, "method": method, "label": label, "score": scores}))
    scores = pd.concat(parts, ignore_index=True)
    initial = {run: model(tmp_path / "initial" / run, 2.0) for run in runs["run"]}
    trained = {run: model(tmp_path / "trained" / run, 5.0) for run in runs["run"]}
    metrics = measure_runs(scores, runs, initial, trained).set_index(["run", "method"])
    assert len(metrics) == 4
    for (run, method), part in scores.groupby(["run", "method"]):
        row = metrics.loc[run, method]
        assert row["auc"] == roc_auc_score(part["label"], part["score"])
        assert row["ap"] == average_precision_score(part["label"], part["score"])
        assert (row["n_test_normals"], row["n_test_anomalies"]) == (20, 7)
        assert row["seconds"] == (7.0 if method == "MPFM" else 2.0)
        assert row["known_class"] == "dent"


def metrics(
    values: np.ndarray, classes: list[str], categories: tuple[str, ...] = ("",), numbers: tuple[int, ...] = (10,)
) -> pd.DataFrame:
    """AUC = values[category, class, seed], AP = half of it; the untrained model is at 0.5."""
    rows = []
    for i, category in enumerate(categories):
        for j, known in enumerate(classes):
            for seed in range(values.shape[2]):
                for number in numbers:
                    for method in METHODS:
                        auc = values[i, j, seed] if method == "MPFM" else 0.5
                        cell = {"dataset": "made", "category": category, "method": method, "known_class": known}
                        rows.append(cell | {"n_anomalies": number, "seed": seed, "auc": auc, "ap": auc / 2})
    return pd.DataFrame(rows)


def cell(summary: pd.DataFrame, **where: object) -> pd.Series:
    for column, value in ({"method": "MPFM"} | where).items():
        summary = summary[summary[column] == value]
    (row,) = summary.to_dict("records")
    return pd.Series(row)


@given(st.integers(2, 4), st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_hard_mean_and_its_spread(n_classes, n_seeds, seed):
    values = np.random.default_rng(seed).uniform(size=(1, n_classes, n_seeds))
    classes = [f"class {j}" for j in range(n_classes)]
    summary = summarise(metrics(values, classes))
    assert summary.columns.tolist() == CONTRACT
    mean = cell(summary, known_class="mean")
    assert mean["auc_mean"] == pytest.approx(values.mean())
    assert mean["auc_std"] == pytest.approx(values[0].mean(axis=0).std())
    assert mean["ap_mean"] == pytest.approx(values.mean() / 2)
    assert mean["ap_std"] == pytest.approx(values[0].mean(axis=0).std() / 2)
    assert mean["n_seeds"] == n_seeds
    for j, known in enumerate(classes):
        row = cell(summary, known_class=known)
        assert row["auc_mean"] == pytest.approx(values[0, j].mean())
        assert row["auc_std"] == pytest.approx(values[0, j].std())
    assert set(summary["category"]) == {""}
    assert cell(summary, method=METHODS[1], known_class="mean")["auc_mean"] == 0.5


def test_general_setting_has_no_known_class_and_no_mean():
    summary = summarise(metrics(np.array([[[0.7, 0.9]]]), [""], numbers=(10, 1)))
    assert set(summary["known_class"]) == {""}
    assert summary[["method", "n_anomalies"]].to_numpy().tolist() == [
        [METHODS[0], 1],
        [METHODS[1], 1],
        [METHODS[0], 10],
        [METHODS[1], 10],
    ]
    row = cell(summary, n_anomalies=1)
    assert (row["auc_mean"], row["auc_std"]) == (pytest.approx(0.8), pytest.approx(0.1))


def test_one_known_class_has_no_mean_over_classes():
    summary = summarise(metrics(np.array([[[0.7, 0.9]]]), ["dent"]))
    assert set(summary["known_class"]) == {"dent"}


def test_mean_over_categories_is_the_mean_of_their_means():
    values = np.random.default_rng(1).uniform(size=(3, 1, 4))
    summary = summarise(metrics(values, [""], categories=("nut", "tile", "wood")))
    mean = cell(summary, category="mean")
    assert mean["known_class"] == ""
    assert mean["auc_mean"] == pytest.approx(values.mean())
    assert mean["auc_std"] == pytest.approx(values[:, 0].mean(axis=0).std())
    assert summary["category"].iloc[-1] == "mean"


def test_mean_over_categories_weighs_each_category_once():
    one = metrics(np.full((1, 1, 2), 0.9), ["dent"], categories=("nut",))
    three = metrics(np.full((1, 3, 2), 0.6), ["cut", "hole", "spot"], categories=("tile",))
    summary = summarise(pd.concat([one, three]))
    assert cell(summary, category="nut", known_class="mean")["auc_mean"] == pytest.approx(0.9)
    assert cell(summary, category="mean", known_class="mean")["auc_mean"] == pytest.approx(0.75)


def test_summary_survives_the_file_of_its_contract():
    summary = summarise(metrics(np.array([[[0.7, 0.9], [0.6, 0.5]]]), ["dent", "hole"]))
    text = summary.to_csv(index=False)
    assert text.splitlines()[0] == ",".join(CONTRACT)
    loaded = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert loaded.to_dict("records") == [pytest.approx(row) for row in summary.to_dict("records")]
