"""The report of one setting: summary for the terminal, and a page with figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mpfm_kedro.evaluation.columns import PIXEL_MEASURES, RECALLS, TRAINED, UNTRAINED, ours
from mpfm_kedro.evaluation.measures import overall
from mpfm_kedro.reports.figures import list_panels, tabulate_roc_curves
from mpfm_kedro.reports.pages import render
from mpfm_kedro.reports.tables import COVERS, MEASURE_TITLES, RECALL, RECALL_TITLES, write_mean

AUC = "Of a random anomaly and a random normal image, how often the anomaly scores higher: 1 is perfect, 0.5 is chance."
TESTED = (
    "By tested class: the anomalies of this class alone against all normal test images. In the hard setting no model "
    "learned from the class that it is tested on."
)
UNDEFINED = (
    "No anomaly was tested, so there is nothing to measure: AUC and AP are undefined. What is shown is how the model "
    "scores normal images that it has not learned from."
)
FEW = 25  # tested images of a kind, below which the uncertainty of an AUC is said
HEADINGS = {"missed": "anomalies{} with the lowest scores", "false alarm": "normals with the highest scores"}


def write_summary(evaluation: dict[str, pd.DataFrame]) -> str:
    """The summary as text tables and how to read it; where test images repeat others, also the one without them."""
    summary, repeats = evaluation["summary"], evaluation["without_repeats"]
    tested = _by_tested_class(evaluation["tested_classes"], means=True)
    table = _shown(summary)
    parts = [table.to_string(index=False), COVERS, f"AUC: {AUC}", *([RECALL] if "recall at 1 %" in table else [])]
    parts += [] if tested is None else [TESTED, tested.to_string(index=False)]
    parts += [*conclusions(evaluation["differences"], summary), *few_tested(evaluation["run_metrics"])]
    parts += [_excluded(repeats), _shown(repeats).to_string(index=False)] if len(repeats) else []
    return "\n".join(parts)


def write_report(
    scores: pd.DataFrame, evaluation: dict[str, pd.DataFrame], description: dict[str, pd.DataFrame]
) -> str:
    """One self-contained HTML page: numbers, mistakes as images, figures."""
    summary, run_metrics, repeats = (evaluation[name] for name in ("summary", "run_metrics", "without_repeats"))
    one = ["dataset"] if summary["category"].nunique() == 1 else []  # the title has it
    dataset, setting = run_metrics[["dataset", "setting"]].iloc[0]
    return render(
        "setting.html",
        title=f"MPFM on {dataset}, {setting} setting",
        sentences=[*conclusions(evaluation["differences"], summary), *few_tested(run_metrics)],
        table=_shown(summary).drop(columns=one),
        texts={"auc": AUC, "covers": COVERS, "recall": RECALL, "tested": TESTED},
        tested_classes=_by_tested_class(evaluation["tested_classes"]),
        excluded=_excluded(repeats) if len(repeats) else "",
        without_repeats=_shown(repeats).drop(columns=one),
        mistakes=_by_kind(description["mistakes"]),
        operating_points=_operating_points(description["operating_points"]),
        panels=list_panels(
            scores, tabulate_roc_curves(scores, run_metrics), description["history"], description["sampled_features"]
        ),
        groups=description["groups"].to_dict("records"),
        runs=run_metrics.drop(columns=["dataset", "setting"]).round(4),
    )


def conclusions(differences: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """One sentence for each M: what the known anomalies add to MPFM without any, over all categories and classes.

    Where no anomaly was tested, one that says so.
    """
    if summary["auc_mean"].isna().all():
        return [UNDEFINED]
    own = overall(differences[differences["method"] == TRAINED])
    return [_conclusion(row, int(summary["n_seeds"].min())) for row in own.to_dict("records")]


def few_tested(run_metrics: pd.DataFrame) -> list[str]:
    """Sentences on how uncertain an AUC is where few images are tested (Hanley and McNeil, 1982), and no recall."""
    normals, anomalies = min(run_metrics[["n_test_normals", "n_test_anomalies"]].to_numpy().tolist(), key=min)
    undefined = [rate for rate in RECALLS.values() if rate * normals < 1 and anomalies]
    sentences = [
        f"Recall at {100 * rate:g} % false alarms is undefined: it needs {1 / rate:.0f} normal test images, there are "
        f"{normals}."
        for rate in undefined
    ]
    if not 0 < min(normals, anomalies) < FEW:
        return sentences
    auc = 0.9
    two_anomalies = auc / (2 - auc)  # how often both score higher than one normal
    two_normals = 2 * auc**2 / (1 + auc)  # how often both score lower than one anomaly
    variance = auc * (1 - auc) + (anomalies - 1) * (two_anomalies - auc**2) + (normals - 1) * (two_normals - auc**2)
    half = 1.96 * (variance / (normals * anomalies)) ** 0.5
    return [
        *sentences,
        f"Only {normals} normal and {anomalies} anomalous images are tested: with so few, an AUC of {auc:.2f} is "
        f"uncertain by ± {half:.2f}, whatever the spread over seeds.",
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


def _excluded(without_repeats: pd.DataFrame) -> str:
    number = without_repeats["excluded"].mean()
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
