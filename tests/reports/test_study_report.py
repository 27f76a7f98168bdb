"""The report of a study: which rows are printed, ranks, tests, what is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.ranks import rank_methods
from mpfm_kedro.reports.study import gather_cells, printed_cells, write_study
from mpfm_kedro.reports.study_figures import cliques

KINDS = {"MPFM": "ours", "DRA": "baseline", "kNN-5": "reference", "DRA (published)": "published"}


def cell(dataset: str, setting: str, known: str, number: int, auc: float, category: str = "") -> pd.DataFrame:
    """The rows of one cell: four methods around ``auc``."""
    step = 0.1 * np.arange(len(KINDS))
    table = pd.DataFrame({"method": KINDS.keys(), "kind": KINDS.values(), "auc_mean": auc - step})
    table["place"], table["verdict"] = ["best", "", "", ""], ["", "worse", "worse", ""]
    for name, shift in {"difference": 0.0, "low": -0.01, "high": 0.01}.items():
        table[name] = np.where(table["verdict"] == "worse", shift - step, np.nan)
    table["recall_1_mean"] = auc - 0.3 if dataset == "elpv" else np.nan
    table.loc[table["kind"] == "published", "recall_1_mean"] = np.nan
    table = table.assign(recall_1_std=0.0, recall_1_low=auc - 0.4, recall_1_high=auc - 0.2, recall_5_mean=np.nan)
    table = table.assign(dataset=dataset, category=category, setting=setting, known_class=known, n_anomalies=number)
    return table.assign(auc_std=0.01, n_seeds=5, note="", budget="", seconds=1.0)


ELPV = pd.concat(
    [cell("elpv", "general", "", m, 0.9) for m in (10, 1)]
    + [cell("elpv", "hard", known, m, 0.8) for known in ("mono", "poly", "mean") for m in (10, 1)]
)
MVTEC = pd.concat([cell("mvtec_ad", "general", "", m, 0.7, c) for c in ("screw", "nut", "mean") for m in (10, 1)])
HEADCT = pd.concat([cell("headct", "general", "", m, 0.95) for m in (10, 1)])
PLAN = pd.DataFrame(
    [
        {"name": name, "dataset": name, "category": "all", "status": status, "problem": problem, "images": 8}
        for name, status, problem in (
            ("mine", "done", ""),
            ("elpv", "done", ""),
            ("headct", "done", ""),
            ("sdd", "missing", "expected in /data/sdd"),
        )
    ]
)
COMPARED = {"elpv/": lambda: ELPV, "mine": lambda: MVTEC, "headct/": lambda: HEADCT, "others": lambda: 1 / 0}


@pytest.fixture
def table() -> pd.DataFrame:
    return printed_cells(gather_cells(PLAN, COMPARED))


def test_the_printed_cells_are_means_over_categories_and_classes(table):
    assert table["name"].unique().tolist() == ["mine", "elpv", "headct"], "the order of the file"
    hard = table[table["setting"] == "hard"]
    assert set(hard["name"]) == {"elpv"} and set(hard["known_class"]) == {"mean"}
    assert set(table["category"][table["name"] == "mine"]) == {"mean"}
    assert len(table) == (2 + 4 + 2) * len(KINDS)


def test_the_report_has_both_tables_ranks_tests_and_what_is_missing(table):
    ranks = rank_methods(table)
    text, page = write_study(table, ranks, PLAN, "Made here.")
    for shown in (text, page):
        for expected in ("General setting", "Hard setting", "Mean ranks", "Datasets of the study", "Made here."):
            assert expected in shown
        assert "sdd" in shown and "expected in /data/sdd" in shown
    (row,) = [line for line in text.splitlines() if line.startswith("| DRA | 0.6") and "±" in line]
    aucs = "0.600 ± 0.010▼ | 0.800 ± 0.010▼ | 0.850 ± 0.010▼"
    assert row == f"| DRA | {aucs} | {aucs} | 2.00 | 2.00 |", "three datasets with M=10, with M=1, and mean ranks"
    assert "general, M=10: 3 methods on 3 datasets; Friedman χ² = 6.0" in text
    assert "hard, M=10: 3 methods on 1 datasets; too few for a test." in text
    assert "| DRA | -0.100 [-0.110, -0.090]▼ |" in text
    (published,) = [line for line in text.splitlines() if line.startswith("| DRA (published) | 0.4")]
    assert published.endswith("| 0.650 ± 0.010 |  |  |"), "published results have no rank"
    assert "data:image/png" in page
    recall = text.split("## recall at 1 %, General setting")[1].split("##")[0]
    assert "| method | elpv, M=10 | elpv, M=1 |" in recall and "| MPFM | 0.600 [0.500, 0.700] |" in recall
    assert "## Mean ranks by recall at 1 %" in text
    assert "Hard setting" in text and "recall at 5 %" not in text.replace("Recall at 1 % (5 %)", "")


def test_a_study_without_results_says_so():
    with pytest.raises(InputError, match="nothing to report"):
        gather_cells(PLAN.assign(status="missing"), COMPARED)
    with pytest.raises(InputError, match="no comparison of headct"):
        gather_cells(PLAN, {name: load for name, load in COMPARED.items() if "headct" not in name})


@pytest.mark.parametrize(
    ("ranks", "critical", "joined"),
    [
        ([1, 2, 3, 4], 1.5, [(0, 1), (1, 2), (2, 3)]),
        ([1, 2, 3, 4], 10, [(0, 3)]),
        ([1, 2, 3, 4], 1, []),
        ([1, 1.2, 1.4, 9, 9.1], 2, [(0, 2), (3, 4)]),
    ],
)
def test_bars_join_what_differs_by_less_than_cd(ranks, critical, joined):
    assert cliques(np.array(ranks, float), critical) == joined
