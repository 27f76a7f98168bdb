"""The comparison: order, marks and headings, in Markdown, on the page and in the figure."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.synthetic_trials import one, trial_costs, trial_scores
from mpfm_kedro.evaluation.intervals import DIFFERENCES, paired_differences, recall_intervals
from mpfm_kedro.evaluation.measures import measure_trials, summarise
from mpfm_kedro.evaluation.published import load_published
from mpfm_kedro.reports.comparison import comparison_table, comparison_tables, write_comparison
from mpfm_kedro.reports.study_figures import draw_comparison

KINDS = {"MPFM": "ours", "Mahalanobis": "reference", "DRA": "baseline", "MPFM, no anomaly known": "ours"}
METHODS = pd.DataFrame({"method": KINDS.keys(), "kind": KINDS.values(), "budget": "200 steps of 32", "note": ""})
TRIALS = pd.concat([METHODS.assign(run=run) for run in ("M10-seed0", "M10-seed1")], ignore_index=True)
STRENGTH = {"MPFM": 1.2, "Mahalanobis": 0.0, "DRA": 4.0, "MPFM, no anomaly known": 1.0}


def compared(dataset: str = "elpv", **more: object) -> pd.DataFrame:
    scores = trial_scores(STRENGTH, dataset=dataset, **more)
    summary = summarise(measure_trials(scores, trial_costs(scores)))
    return comparison_table(summary, paired_differences(scores, draws=50), TRIALS, load_published(dataset))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return compared(classes=("mono", "poly"), n_seeds=5)


def test_methods_are_in_the_order_of_their_kinds(table):
    assert table["method"].drop_duplicates().tolist()[:4] == ["MPFM", "MPFM, no anomaly known", "DRA", "Mahalanobis"]
    assert table["kind"].drop_duplicates().tolist() == ["ours", "baseline", "reference", "published"]


def test_columns_are_general_then_hard_mean_then_classes(table):
    shown, differences, *_ = comparison_tables(table)
    assert (shown.title, differences.title) == ("elpv", "elpv: difference to MPFM")
    assert differences.header == shown.header[:-2]
    assert differences.sections[""].index.tolist() == ["MPFM, no anomaly known", "DRA", "Mahalanobis"]
    assert shown.header == [
        "method",
        *("general, M=10", "general, M=1", "hard mean, M=10", "hard mean, M=1"),
        *("hard, known mono, M=10", "hard, known mono, M=1", "hard, known poly, M=10", "hard, known poly, M=1"),
        *("seconds per run", "budget"),
    ]
    assert all(section.columns.tolist() == shown.header[1:] for section in shown.sections.values())


def test_best_second_and_decided_differences_are_marked(table):
    written, _ = write_comparison(table, "", 0)
    first, second = written.split("## elpv: difference to MPFM")
    lines = {line.split(" | ")[0].strip("| "): line for line in first.splitlines()}
    assert re.search(r"\| DRA \| \+0\.\d+ \[\+0\.\d+, \+0\.\d+\]▲ \|", second)
    assert re.match(r"\| DRA \| \*\*0\.\d+ ± 0\.\d+▲\*\* \|", lines["DRA"])
    assert "<u>0." in lines["MPFM"]
    assert "▼" in lines["Mahalanobis"]
    assert not set("▲▼") & set(lines["MPFM"])
    assert lines["DRA"].endswith("| 2 | 200 steps of 32 |")
    published = lines["MPFM (published)"]
    assert "| 0.962 ± 0.003 | 0.914 ± 0.016 | 0.832 ± 0.009 |" in published
    assert "**" not in published
    assert "<u>" not in published
    headings = [name for name in lines if name.startswith("*")]
    assert headings == [
        "*ours*",
        "*baselines, rebuilt here on the same frozen backbone, not their authors' code*",
        "*references*",
        "*published (as the MPFM paper prints them, other configuration)*",
    ]
    assert "† the better of two variants in every row (AHL (published))" in lines


@given(st.lists(st.integers(0, 6).map(lambda value: 0.9 + value / 1000), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None)
def test_places_are_those_of_the_printed_figures(means):
    methods = METHODS.iloc[: len(means)]
    cell = {"dataset": "synthetic", "category": "", "setting": "general", "known_class": "", "n_anomalies": 10}
    summary = pd.DataFrame({"method": methods["method"], "auc_mean": np.add(means, 0.0001)})
    summary = summary.assign(**cell, auc_std=0.0, ap_mean=0.5, ap_std=0.0, n_seeds=1, seconds=1.0)
    table = comparison_table(summary, pd.DataFrame(columns=DIFFERENCES), methods, load_published("synthetic"))
    in_order = sorted(set(means), reverse=True)
    for name, mean in zip(methods["method"], means, strict=True):
        expected = "best" if mean == in_order[0] else "second" if mean == in_order[1] else ""
        assert one(table, method=name)["place"] == expected


def test_categories_have_a_table_each_after_that_of_their_mean():
    categories, classes = ("carpet", "wood"), ("color", "hole")
    table = compared(dataset="mvtec_ad", categories=categories, classes=classes, numbers=(10,), n_seeds=1)
    tables = comparison_tables(table)
    titles = [shown.title for shown in tables[:6:2]]
    assert titles == ["mvtec_ad mean over categories", "mvtec_ad carpet", "mvtec_ad wood"]
    *_, published = tables[0].sections.values()
    assert published["general, M=10"]["MPFM (published)"] == "0.982 ± 0.003"


def test_pixel_measures_of_methods_with_heat_maps_have_tables_of_their_own(table):
    scores = trial_scores(STRENGTH, dataset="elpv", classes=("mono",), n_seeds=2)
    summary = summarise(measure_trials(scores, trial_costs(scores)))
    general = summary["method"].str.startswith("MPFM") & (summary["setting"] == "general")
    marked = summary.assign(aupro_mean=np.where(general, 0.9, np.nan), aupro_std=np.where(general, 0.01, np.nan))
    marked = comparison_table(marked, paired_differences(scores, draws=50), TRIALS, load_published("elpv"))
    *_, shown = comparison_tables(marked)
    assert (shown.title, shown.header) == ("AUPRO, elpv", ["method", "general, M=10", "general, M=1"])
    assert shown.rows[""] == [
        [method, "0.900 ± 0.010", "0.900 ± 0.010"] for method in ("MPFM", "MPFM, no anomaly known")
    ]
    assert not any(shown.title.startswith("AUPRO") for shown in comparison_tables(table))


def test_recalls_with_their_intervals_have_tables_of_their_own():
    scores = trial_scores(STRENGTH, dataset="elpv", classes=("mono", "poly"), numbers=(10,), n_seeds=2, n_normals=40)
    summary = summarise(measure_trials(scores, trial_costs(scores)), recall_intervals(scores, draws=50))
    table = comparison_table(summary, paired_differences(scores, draws=50), TRIALS, load_published("elpv"))
    (recall,) = [shown for shown in comparison_tables(table) if shown.title.startswith("recall")]
    assert recall.title == "recall at 5 %, elpv", "40 normals have no recall at 1 %"
    row = one(table, method="DRA", setting="hard", known_class="mean")
    written = f"{row['recall_5_mean']:.3f} [{row['recall_5_low']:.3f}, {row['recall_5_high']:.3f}]"
    assert recall.sections[""]["hard mean, M=10"]["DRA"] == written


def test_page_is_complete_in_itself(table):
    _, page = write_comparison(table.assign(budget="<i>&"), "", 100)
    assert "<i>&" not in page and "&lt;i&gt;&amp;" in page
    assert "No default was chosen" not in page
    assert page.startswith("<!doctype html>")
    assert page.count("<img") == page.count("data:image/png;base64,") == 1
    assert "<b>" in page
    assert "<u>" in page
    assert "published (as the MPFM paper prints them, other configuration)" in page
    assert not re.search(r"(src|href)='http", page)


def test_figure_has_one_panel_per_column_and_one_row_per_method(table):
    figure = draw_comparison(table)
    assert len([axis for axis in figure.axes if axis.get_visible()]) == 8
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[:4] == ["MPFM", "MPFM, no anomaly known", "DRA", "Mahalanobis"]
    assert set(names[4:]) == {"FLOS", "SAOE", "MLEP", "AHL", "DPDL"}
