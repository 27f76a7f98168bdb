"""The report of one setting: summary for the terminal, and a page with figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mpfm_kedro.evaluation.columns import TRAINED, UNTRAINED
from mpfm_kedro.evaluation.measures import overall, with_numbers
from mpfm_kedro.reports.figures import loss_panels, roc_panels, sampled_panels, score_panels, usage_panels
from mpfm_kedro.reports.pages import render
from mpfm_kedro.reports.tables import COVERS, MEASURE_TITLES, mean_and_std

AUC = "Of a random anomaly and a random normal image, how often the anomaly scores higher: 1 is perfect, 0.5 is chance."
RECALL = "Recall at 1 % (5 %): the share of anomalies above the threshold that at most that share of normals exceeds."
UNDEFINED = (
    "No anomaly was tested, so there is nothing to measure: AUC and AP are undefined. What is shown is how the model "
    "scores normal images that it has not learned from."
)
FEW = 25  # tested images of a kind, below which the uncertainty of an AUC is said
HEADINGS = {"missed": "anomalies{} with the lowest scores", "false alarm": "normals with the highest scores"}


def write_summary(
    summary: pd.DataFrame,
    without_repeats: pd.DataFrame | None = None,
    differences: pd.DataFrame | None = None,
    run_metrics: pd.DataFrame | None = None,
) -> str:
    """The summary as a text table and how to read it; where test images repeat others, also the one without them."""
    table = _shown(summary)
    parts = [table.to_string(index=False), COVERS, f"AUC: {AUC}", *([RECALL] if "recall at 1 %" in table else [])]
    parts += [*conclusions(differences, summary), *few_tested(run_metrics)]
    if without_repeats is not None and len(without_repeats):
        parts += [_excluded(without_repeats), _shown(without_repeats).to_string(index=False)]
    return "\n".join(parts)


def write_report(
    summary: pd.DataFrame,
    run_metrics: pd.DataFrame,
    scores: pd.DataFrame,
    history: pd.DataFrame,
    without_repeats: pd.DataFrame | None = None,
    sampled_features: pd.DataFrame | None = None,
    differences: pd.DataFrame | None = None,
    mistakes: pd.DataFrame | None = None,
    operating_points: pd.DataFrame | None = None,
    groups: pd.DataFrame | None = None,
) -> str:
    """One self-contained HTML page: numbers, mistakes as images, figures."""
    one = ["dataset"] if summary["category"].nunique() == 1 else []  # the title has it
    repeats = None if without_repeats is None or without_repeats.empty else without_repeats
    dataset, setting = run_metrics["dataset"].iloc[0], run_metrics["setting"].iloc[0]
    return render(
        "setting.html",
        title=f"MPFM on {dataset}, {setting} setting",
        sentences=[*conclusions(differences, summary), *few_tested(run_metrics)],
        table=_shown(summary).drop(columns=one),
        auc=AUC,
        covers=COVERS,
        excluded="" if repeats is None else _excluded(repeats),
        without_repeats=None if repeats is None else _shown(repeats).drop(columns=one),
        mistakes=[] if mistakes is None else _by_kind(mistakes),
        operating_points=None if operating_points is None else _operating_points(operating_points),
        roc=roc_panels(scores, run_metrics),
        histograms=score_panels(scores),
        losses=loss_panels(history),
        usage=usage_panels(history),
        groups=[] if groups is None else groups.to_dict("records"),
        sampled=[] if sampled_features is None else sampled_panels(sampled_features),
        runs=run_metrics.drop(columns=["dataset", "setting"]).round(4),
    )


def conclusions(differences: pd.DataFrame | None, summary: pd.DataFrame) -> list[str]:
    """One sentence for each M: what the known anomalies add to MPFM without any, over all categories and classes.

    Where no anomaly was tested, one that says so.
    """
    if differences is None or differences.empty:
        return [UNDEFINED] if with_numbers(summary)["auc_mean"].isna().all() else []
    own = overall(differences[differences["method"] == TRAINED])
    return [_conclusion(row, int(summary["n_seeds"].min())) for row in own.to_dict("records")]


def few_tested(run_metrics: pd.DataFrame | None) -> list[str]:
    """A sentence on how uncertain an AUC is where few images are tested (Hanley and McNeil, 1982)."""
    if run_metrics is None or not {"n_test_normals", "n_test_anomalies"} <= set(run_metrics):
        return []
    pairs = zip(run_metrics["n_test_normals"], run_metrics["n_test_anomalies"], strict=True)
    normals, anomalies = min(pairs, key=min)
    if not 0 < min(normals, anomalies) < FEW:
        return []
    auc = 0.9
    two_anomalies = auc / (2 - auc)  # how often both score higher than one normal
    two_normals = 2 * auc**2 / (1 + auc)  # how often both score lower than one anomaly
    variance = auc * (1 - auc) + (anomalies - 1) * (two_anomalies - auc**2) + (normals - 1) * (two_normals - auc**2)
    half = 1.96 * (variance / (normals * anomalies)) ** 0.5
    return [
        f"Only {normals} normal and {anomalies} anomalous images are tested: with so few, an AUC of {auc:.2f} is "
        f"uncertain by ± {half:.2f}, whatever the spread over seeds."
    ]


def _conclusion(row: dict[Any, Any], n_seeds: int) -> str:
    number = row["n_anomalies"]
    known = f"the {number} known anomalies" if number > 1 else "the one known anomaly"
    where = f" of class {row['known_class']}" if row["known_class"] not in ("", "mean") else ""
    change, low, high = (f"{round(row[name], 3) + 0:+.3f}" for name in ("difference", "low", "high"))  # not -0.000
    verdict = {
        "better": f"adds {change[1:]} AUC",
        "worse": f"costs {change[1:]} AUC",
    }.get(row["verdict"], f"adds nothing measurable here ({change} AUC)")
    sentence = f"What MPFM learned from {known}{where} {verdict}, compared with '{UNTRAINED}'"
    if n_seeds < 2 or (n_seeds < 3 and row["verdict"] not in ("better", "worse")):
        seeds = "one seed" if n_seeds < 2 else "two seeds"
        return f"MPFM has {change} AUC compared with '{UNTRAINED}'; {seeds} cannot tell whether that is chance."
    return f"{sentence}; 95 % interval {low} to {high}."


def _shown(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns that are shown, measures as mean ± standard deviation; of pixels where there are masks."""
    records = with_numbers(summary).to_dict("records")
    present = {title: name for title, name in MEASURE_TITLES.items() if f"{name}_mean" in summary}
    table = pd.DataFrame(
        {
            "dataset": summary["dataset"] + summary["category"].map(lambda name: f" {name}" if name else ""),
            "method": summary["method"],
            "known class": summary["known_class"],
            "M": summary["n_anomalies"].mask(summary["method"] == UNTRAINED, 0),
            "AUC": [mean_and_std(record, "auc") or "undefined" for record in records],
            "AP": [mean_and_std(record, "ap") or "undefined" for record in records],
            **{title: [mean_and_std(record, name) for record in records] for title, name in present.items()},
            "seeds": summary["n_seeds"],
        }
    ).drop_duplicates()  # without a known anomaly, all M are one
    return table if (table["known class"] != "").any() else table.drop(columns="known class")


def _excluded(without_repeats: pd.DataFrame) -> str:
    number = without_repeats["excluded"].astype(float).mean()
    return (
        "Some test images repeat a training image of their run or an earlier test image: "
        f"without them ({number:.3g} per run on average)"
    )


def _operating_points(points: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall at a threshold as shares in per cent."""
    shares = ["guaranteed", "false_alarms", "precision", "recall"]
    table = points.drop(columns="run").assign(**{name: points[name].map("{:.1%}".format) for name in shares})
    table = table.replace(dict.fromkeys(shares, "nan%"), "undefined")
    return table.rename(columns={"known_class": "known class", "n_anomalies": "M", "false_alarms": "false alarms"})


def _by_kind(mistakes: pd.DataFrame) -> list[tuple[str, list[dict[Any, Any]]]]:
    """The misses of each class and the false alarms of every cell, under their headings."""
    kinds = []
    for (known, number), cell in mistakes.groupby(["known_class", "n_anomalies"], sort=False):
        title = f"known class {known}, M = {number}" if known else f"M = {number}"
        for (kind, defect), part in cell.groupby(["kind", "defect_class"], sort=False):
            heading = HEADINGS[str(kind)].format(f" of class {defect}" if defect else "")
            kinds.append((f"{title}: {heading}", part.to_dict("records")))
    return kinds
