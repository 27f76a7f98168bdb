"""Ablation and sensitivity: differences beside published results; separation and false alarms on known answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import median_abs_deviation

from evaluation.synthetic_trials import one, trial_costs, trial_scores
from mpfm_kedro.evaluation.false_alarms import (
    false_alarms_by_mode,
    separation,
    uneven_false_alarms,
)
from mpfm_kedro.evaluation.intervals import paired_differences
from mpfm_kedro.evaluation.measures import measure_trials, summarise
from mpfm_kedro.evaluation.published import load_published_ablation
from mpfm_kedro.reports.study_figures import draw_ablation, draw_false_alarms, draw_sensitivity
from mpfm_kedro.reports.variants import ablation_table, sensitivity_table, write_ablation, write_sensitivity


def summarised(scores: pd.DataFrame) -> pd.DataFrame:
    return summarise(measure_trials(scores, trial_costs(scores)))


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    strength = {"MPFM": 1.5, "without MPFL": 1.4, "without M_g": 0.0}
    return trial_scores(strength, classes=("mono", "poly"), numbers=(10,), dataset="elpv")


@pytest.fixture(scope="module")
def table(scores) -> pd.DataFrame:
    differences = paired_differences(scores, draws=50)
    return ablation_table(summarised(scores), differences, load_published_ablation("elpv"))


def test_variants_are_beside_published_results(scores, table):
    row = one(table, method="without M_g", setting="general")
    assert row["verdict"] == "worse"
    assert row["published_mean"] == 0.946
    assert row["published_difference"] == pytest.approx(-0.016)
    assert np.isnan(one(table, method="without MPFL", setting="general")["published_mean"])
    lines = write_ablation(table, separation(scores), false_alarms_by_mode(scores))[0].splitlines()
    header = next(line for line in lines if line.startswith("| variant"))
    assert header.startswith(
        "| variant | general, M=10 | difference | published | hard mean, M=10 | difference | hard, "
    )
    assert any(line.startswith("| without M_g |") and "▼ | 0.946 ± 0.006 |" in line for line in lines)


def test_page_and_figure_of_the_ablation(scores, table):
    false_alarms = false_alarms_by_mode(scores)
    _, page = write_ablation(table, separation(scores), false_alarms)
    assert page.count("data:image/png;base64,") == 2
    assert "Separation, elpv" in page
    assert "Unevenness of false alarms over modes, elpv" in page
    figure = draw_ablation(table)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["without MPFL", "without M_g"]
    assert len(draw_false_alarms(false_alarms).axes) == 3


def test_separation_is_in_units_of_the_normals_deviation(scores):
    part = scores[scores["run"] == "general-M10-seed0"]
    found = one(separation(part), method="MPFM")
    own = part[part["method"] == "MPFM"]
    normals, anomalies = (own["score"][own["label"] == label] for label in (0, 1))
    expected = (anomalies.median() - normals.median()) / median_abs_deviation(normals, scale="normal")
    assert found["margin_mean"] == pytest.approx(expected, rel=1e-3)
    shifted = part.assign(score=5 * part["score"] - 3)
    assert one(separation(shifted), method="MPFM")["margin_mean"] == pytest.approx(found["margin_mean"])


def test_false_alarms_fall_where_the_scores_are_high():
    """A method that scores one mode higher gives all its alarms there; the modes are MPFM's for all."""
    scores = trial_scores({"MPFM": 1.0, "without MPFL": 1.0}, classes=("dent",), numbers=(10,), n_normals=200)
    mode = scores[scores["method"] == "MPFM"].set_index(["run", "sample"])["mode"]
    keys = pd.MultiIndex.from_frame(scores[["run", "sample"]])
    raised = (scores["method"] == "without MPFL") & (mode.loc[keys].to_numpy() == 1)
    scores.loc[raised, "score"] += 10
    table = false_alarms_by_mode(scores, rate=0.05)
    for _, part in table.groupby(["run", "method"]):
        assert part["n_normals"].tolist() == [100, 100]
        assert part["rate"].mean() <= 0.05
        assert part["rate"].mean() >= 0.04
    rates = table[table["method"] == "without MPFL"].groupby("mode")["rate"].max()
    assert rates[0] == 0
    assert rates[1] >= 0.08
    uneven = uneven_false_alarms(table).set_index("method")
    assert uneven["excess_mean"]["without MPFL"] > uneven["excess_mean"]["MPFM"]
    mean, spread = uneven["unevenness_mean"]["without MPFL"], uneven["unevenness_std"]["without MPFL"]
    assert mean == pytest.approx(spread + rates[1] / 2)


def test_sensitivity_is_in_the_order_of_the_values():
    strength = {"MPFM": 1.0, "K=32": 1.0, "K=8": 0.8, "λ=1": 0.9, "λ=0.001": 0.7}
    summary = summarised(trial_scores(strength, dataset="aitex", numbers=(10,), n_seeds=2))
    table = sensitivity_table(summary, load_published_ablation("aitex"))
    general = table[table["setting"] == "general"]
    names = ["K=8", "K=16", "K=32", "K=64", "λ=0.001", "λ=0.01", "λ=0.1", "λ=1"]
    assert general["method"].tolist() == names
    assert general["auc_mean"].notna().tolist() == [True, False, True, False, True, False, False, True]
    assert general["published_mean"].tolist() == [0.980, 0.988, 0.992, 0.989, 0.987, 0.989, 0.992, 0.981]
    hard = table[(table["setting"] == "hard") & (table["known_class"] == "mean")]
    assert hard["method"].tolist() == ["K=8", "K=32", "λ=0.001", "λ=1"]
    written, page = write_sensitivity(table)
    first = written.split("## recall at 5 %")[0]
    rows = (line.split(" | ")[0][2:] for line in first.splitlines())
    assert [name for name in rows if name in names] == names
    assert "data:image/png" in page
    panels = [axis for axis in draw_sensitivity(table).axes if axis.get_visible()]
    assert [axis.get_xlabel() for axis in panels] == ["K"] * 4 + ["λ"] * 4
