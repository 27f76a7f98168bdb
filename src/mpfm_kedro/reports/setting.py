"""The report of one setting: summary for the terminal, and a page with figures."""

import pandas as pd

from mpfm_kedro.evaluation.columns import PIXEL_MEASURES, RECALLS, TRAINED, UNTRAINED, ours
from mpfm_kedro.evaluation.measures import overall
from mpfm_kedro.reports.figures import list_panels, tabulate_roc_curves
from mpfm_kedro.reports.pages import render, write_mean
from mpfm_kedro.reports.tables import MEASURE_TITLES, RECALL_TITLES

FEW = 25  # tested images of a kind, below which the uncertainty of an AUC is said


def write_summary(evaluation: dict[str, pd.DataFrame], uncounted: str = "") -> str:
    """The summary as text tables and how to read it; where test images repeat others, also the one without them.

    ``uncounted`` says which scores count nothing.
    """
    repeats = evaluation["without_repeats"]
    return render(
        "summary.txt",
        table=_shown(evaluation["summary"]),
        tested_classes=_by_tested_class(evaluation["tested_classes"], means=True),
        sentences=[*conclusions(evaluation), *filter(None, [uncounted])],
        without_repeats=repeats,
        table_without_repeats=_shown(repeats),
    ).rstrip()


def write_report(
    scores: pd.DataFrame,
    evaluation: dict[str, pd.DataFrame],
    description: dict[str, pd.DataFrame],
    uncounted: str = "",
) -> str:
    """One self-contained HTML page: numbers, mistakes as images, figures; ``uncounted`` as in the summary."""
    summary, run_metrics, repeats = (evaluation[name] for name in ("summary", "run_metrics", "without_repeats"))
    one = ["dataset"] if summary["category"].nunique() == 1 else []  # the title has it
    dataset, setting = run_metrics[["dataset", "setting"]].iloc[0]
    roc = tabulate_roc_curves(scores, run_metrics)
    return render(
        "setting.html",
        title=f"MPFM on {dataset}, {setting} setting",
        sentences=[*conclusions(evaluation), *filter(None, [uncounted])],
        table=_shown(summary).drop(columns=one),
        tested_classes=_by_tested_class(evaluation["tested_classes"]),
        without_repeats=repeats,
        table_without_repeats=_shown(repeats).drop(columns=one),
        mistakes=description["mistakes"],
        operating_points=description["operating_points"].to_dict("records"),
        panels=list_panels(scores, roc, description["history"], description["sampled_features"]),
        groups=description["groups"].to_dict("records"),
        both_labels=description["both_labels"].to_dict("records"),
        runs=run_metrics.drop(columns=["dataset", "setting"]).round(4),
    )


def conclusions(evaluation: dict[str, pd.DataFrame]) -> list[str]:
    """What known anomalies add over all categories and classes, for each M; what is undefined or uncertain."""
    summary, differences, run_metrics = (evaluation[name] for name in ("summary", "differences", "run_metrics"))
    normals, anomalies = min(run_metrics[["n_test_normals", "n_test_anomalies"]].to_numpy().tolist(), key=min)
    return render(
        "conclusions.txt",
        defined=summary["auc_mean"].notna().any(),
        gains=overall(differences[differences["method"] == TRAINED]).to_dict("records"),
        n_seeds=int(summary["n_seeds"].min()),
        n_normals=normals,
        n_anomalies=anomalies,
        undefined_recalls=[rate for rate in RECALLS.values() if anomalies and rate * normals < 1],
        half_width=_uncertainty(normals, anomalies) if 0 < min(normals, anomalies) < FEW else None,
    ).splitlines()


def _uncertainty(n: int, a: int, auc: float = 0.9) -> float:
    """Half of the 95 % interval of an AUC of n normals and a anomalies (Hanley and McNeil, 1982)."""
    two_anomalies = auc / (2 - auc)  # how often both score higher than one normal
    two_normals = 2 * auc**2 / (1 + auc)  # how often both score lower than one anomaly
    variance = auc * (1 - auc) + (a - 1) * (two_anomalies - auc**2) + (n - 1) * (two_normals - auc**2)
    return float(1.96 * (variance / (n * a)) ** 0.5)


def _shown(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns that are shown, measures as means with intervals or ±; of pixels where there are masks."""
    table = pd.DataFrame(
        {
            "dataset": summary["dataset"] + summary["category"].map(lambda name: f" {name}" if name else ""),
            "method": summary["method"],
            "known class": summary["known_class"],
            "M": summary["n_anomalies"].mask(summary["method"] == UNTRAINED, 0),
            **_write_measures(summary, {"AUC": "auc", "AP": "ap"} | MEASURE_TITLES),
            "seeds": summary["n_seeds"],
        }
    ).drop_duplicates()  # without a known anomaly, all M are one
    return table if (table["known class"] != "").any() else table.drop(columns="known class")


def _by_tested_class(table: pd.DataFrame, means: bool = False) -> pd.DataFrame | None:
    """AUC and recall of MPFM by tested class, if there are several; ``means``: only those over known classes."""
    if table["tested_class"].nunique() < 2:
        return None
    own = table[table["method"] == ours(table["method"])]
    if means:
        own = pd.concat([overall(part) for _, part in own.groupby("tested_class")])
    shown = pd.DataFrame(
        {
            "category": own["category"],
            "known class": own["known_class"],
            "tested class": own["tested_class"],
            "M": own["n_anomalies"],
            "tested anomalies": own["n_test_anomalies_mean"].map("{:.3g}".format),
            **_write_measures(own, {"AUC": "auc"} | RECALL_TITLES),
        }
    )
    return shown.loc[:, (shown != "").any()]


def _write_measures(table: pd.DataFrame, titles: dict[str, str]) -> dict[str, list[str]]:
    """The measures that a table has, by their titles; methods without heat maps have none of pixels."""
    present = {title: name for title, name in titles.items() if f"{name}_mean" in table}
    records = table.to_dict("records")
    return {
        title: [write_mean(row, name) or ("" if name in PIXEL_MEASURES else "undefined") for row in records]
        for title, name in present.items()
    }
