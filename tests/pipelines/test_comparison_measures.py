"""Trials are measured like runs; the means over classes and categories are those of the summary."""

from __future__ import annotations

import numpy as np
import pytest
from made_trials import one, trial_costs, trial_scores
from sklearn.metrics import average_precision_score, roc_auc_score

from mpfm_kedro.errors import InputError
from mpfm_kedro.pipelines.comparison.measures import SUMMARY, measure_trials, summarise_trials


def test_metrics_of_a_trial_are_scikit_learn_s():
    scores = trial_scores({"MPFM": 1.0, "DRA": 0.5}, n_seeds=2)
    metrics = measure_trials(scores, trial_costs(scores))
    assert len(metrics) == scores.groupby(["setting", "run", "method"]).ngroups == 2 * 3 * 2 * 2
    for row in metrics.to_dict("records"):
        part = scores[(scores["run"] == row["run"]) & (scores["method"] == row["method"])]
        assert row["auc"] == roc_auc_score(part["label"], part["score"])
        assert row["ap"] == average_precision_score(part["label"], part["score"])
        assert row["n_test_normals"] == 40
        assert row["seconds"] == 2.0
        assert row["known_class"] == part["known_class"].iloc[0]


def test_summary_has_both_settings_and_their_means():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5}, categories=("nut", "tile"), n_seeds=2)
    metrics = measure_trials(scores, trial_costs(scores, 3.5))
    summary = summarise_trials(metrics)
    assert summary.columns.tolist() == SUMMARY
    own = metrics[(metrics["method"] == "A") & (metrics["n_anomalies"] == 1)]
    of_seed = own[own["setting"] == "hard"].groupby(["seed", "category"])["auc"].mean().groupby("seed").mean()
    cell = {"method": "A", "n_anomalies": 1, "category": "mean"}
    row = one(summary, setting="hard", known_class="mean", **cell)
    assert row["auc_mean"] == pytest.approx(of_seed.mean())
    assert row["auc_std"] == pytest.approx(of_seed.std(ddof=0))
    assert row["n_seeds"] == 2
    assert row["seconds"] == 3.5
    general = own[own["setting"] == "general"]["auc"].mean()
    assert one(summary, setting="general", **cell)["auc_mean"] == pytest.approx(general)
    assert set(summary["known_class"][summary["setting"] == "general"]) == {""}


def test_methods_keep_their_order():
    scores = trial_scores({"MPFM": 1.0, "Z": 0.5, "A": 0.5}, n_seeds=1)
    summary = summarise_trials(measure_trials(scores, trial_costs(scores)))
    assert summary["method"].drop_duplicates().tolist() == ["MPFM", "Z", "A"]


def test_dataset_without_hard_setting():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5}, classes=("defect",))
    summary = summarise_trials(measure_trials(scores, trial_costs(scores)))
    assert set(summary["setting"]) == {"general"}
    assert "mean" not in set(summary["known_class"])


def test_a_mean_over_other_classes_than_those_of_the_rest_is_refused():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5})
    lost = (scores["method"] == "A") & (scores["run"] == "hard-hole-M10-seed1")
    with pytest.raises(InputError, match=r"'A' has 1 of 2 runs in the hard setting with M=10, seed 1"):
        measure_trials(scores[~lost], trial_costs(scores))


def test_fewer_seeds_of_a_slow_method_are_no_error():
    scores = trial_scores({"MPFM": 1.0, "slow": 0.5})
    scores = scores[(scores["method"] == "MPFM") | (scores["seed"] == 0)]
    summary = summarise_trials(measure_trials(scores, trial_costs(scores)))
    row = one(summary, method="slow", setting="hard", known_class="mean", n_anomalies=10)
    assert (row["n_seeds"], row["auc_std"]) == (1, 0)
    assert not np.isnan(row["auc_mean"])
