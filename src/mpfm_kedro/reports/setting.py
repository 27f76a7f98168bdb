"""The report of one setting: summary for the terminal, and a page with figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mpfm_kedro.experiments.columns import AS_PRINTED, AT_STEP_0, TRAINED, UNTRAINED
from mpfm_kedro.experiments.measures import with_numbers
from mpfm_kedro.reports.figures import Panel, loss_panels, roc_panels, sampled_panels, score_panels, usage_panels
from mpfm_kedro.reports.groups import show_groups
from mpfm_kedro.reports.layout import COVERS, PIXEL_TITLES, plus_minus
from mpfm_kedro.reports.markup import data_table, folded, gallery, glossary, page, paragraphs
from mpfm_kedro.reports.mistakes import show_mistakes

AUC = "Of a random anomaly and a random normal image, how often the anomaly scores higher: 1 is perfect, 0.5 is chance."
UNDEFINED = (
    "No anomaly was tested, so there is nothing to measure: AUC and AP are undefined. What is shown is how the model "
    "scores normal images that it has not learned from."
)
TERMS = {
    "AUC": AUC,
    "AP": "Average precision: the share of true anomalies among the images with the highest scores, averaged over all "
    "places to cut. Chance is the share of anomalies among the test images.",
    "M": "The number of known anomalies that a model may learn from. All others are for testing.",
    "known class": "The class that the known anomalies come from. In the hard setting only other classes are tested; "
    "'mean' is the mean over all known classes.",
    "seeds": f"How often it was repeated. {COVERS}",
    TRAINED: "The whole method: what normal images look like, and what the known anomalies look like.",
    AT_STEP_0: "The same model with its flow, its prototypes and M_r as they were before training: the difference is "
    "what training the flow adds.",
    UNTRAINED: "The same model without any known anomaly: the difference is what known anomalies add.",
    AS_PRINTED: "The method as its paper prints it, with every repair off.",
}
SCORES = (
    "Test images of all runs. The further apart blue and red are, the better a score separates them. 'score' is the "
    "result, a weighted sum of the four others. Each of these is −log of the share of normals that score as high: 7 "
    "says one in a thousand. score_g: how improbable the whole image is among normals. score_a: how much its most "
    "suspicious patches look like known anomalies. score_r: how unusual its most unusual patches are among normals. "
    "score_n: how normal it looks, higher for normals, and subtracted. Outliers are counted in the outermost bars."
)
ROC = (
    "Each point is a threshold: how many anomalies are found at how many false alarms. The line is the mean over "
    "seeds, the band their range; the thin diagonal is chance."
)
LOSS = (
    "The seven terms of the objective and their sum, mean and range over runs. score_a, score_n, score_r, score_g: how "
    "well each module tells known anomalies from normals. flow_n: how well the flow carries normals to their "
    "prototypes. flow_a: how far it keeps anomalies away. mim: minus the mutual information of images and prototypes. "
    "M_a is trained in the first half."
)
USAGE = "How many prototypes the training normals use, and the mutual information as a share of its largest value."
SAMPLED = "Features of real normals of the first run, and what its model takes for normal: the clouds should overlap."

FEW = 25  # tested images of a kind, below which the uncertainty of an AUC is said

PIXEL_TERMS = {
    "pixel AUC": "The AUC of pixels instead of images: of a random defective and a random normal pixel, how often the "
    "defective one is hotter in the heat map. Large defects decide it.",
    "AUPRO": "How much of each defect the heat map covers, every defect counting alike, averaged over thresholds with "
    "up to 30 % of the normal pixels above them.",
    "pixel F1": "Precision and recall of pixels as one number, at the threshold that is best on the test images.",
}


def write_summary(
    summary: pd.DataFrame,
    without_repeats: pd.DataFrame | None = None,
    differences: pd.DataFrame | None = None,
    run_metrics: pd.DataFrame | None = None,
) -> str:
    """The summary as a text table and how to read it; where test images repeat others, also the one without them."""
    parts = [_shown(summary).to_string(index=False), COVERS, f"AUC: {AUC}"]
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
    table = _shown(summary).drop(columns=one)
    terms = {term: words for term, words in (TERMS | PIXEL_TERMS).items() if term in {*table, *table["method"]}}
    sentences = [*conclusions(differences, summary), *few_tested(run_metrics)]
    parts = [*paragraphs(sentences), data_table(table), glossary(terms)]
    if without_repeats is not None and len(without_repeats):
        parts += [*paragraphs([_excluded(without_repeats)]), data_table(_shown(without_repeats).drop(columns=one))]
    if mistakes is not None and operating_points is not None and len(mistakes):
        parts += show_mistakes(mistakes, operating_points)
    parts += [
        _gallery("ROC curves", ROC, roc_panels(scores, run_metrics)),
        _gallery("Scores of the test images", SCORES, score_panels(scores)),
        _gallery("Training", LOSS, loss_panels(history)),
        _gallery("Prototypes of the flow", USAGE, usage_panels(history)),
    ]
    if groups is not None and len(groups):
        parts += show_groups(groups)
    if sampled_features is not None:
        parts.append(_gallery("Real and sampled features of normals", SAMPLED, sampled_panels(sampled_features)))
    dataset, setting = run_metrics["dataset"].iloc[0], run_metrics["setting"].iloc[0]
    runs = run_metrics.drop(columns=["dataset", "setting"]).round(4)
    parts.append(folded(f"All {len(runs)} runs, one row per run and method", data_table(runs)))
    return page(f"MPFM on {dataset}, {setting} setting", parts)


def conclusions(differences: pd.DataFrame | None, summary: pd.DataFrame) -> list[str]:
    """One sentence for each M: what the known anomalies add to MPFM without any, over all categories and classes.

    Where no anomaly was tested, one that says so.
    """
    if differences is None or differences.empty:
        return [UNDEFINED] if with_numbers(summary)["auc_mean"].isna().all() else []
    own = differences[differences["method"] == TRAINED]
    for column in ("category", "known_class"):
        means = own[own[column] == "mean"]
        own = means if len(means) else own
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


def _gallery(heading: str, explanation: str, panels: list[Panel]) -> str:
    """Panels under a heading; nothing where there are none."""
    drawn = ((panel.title, panel.alone(wide=len(panels) == 1)) for panel in panels)
    return gallery(heading, explanation, drawn) if panels else ""


def _shown(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns that are shown, measures as mean ± standard deviation; of pixels where there are masks."""
    records = with_numbers(summary).to_dict("records")
    pixels = {title: name for title, name in PIXEL_TITLES.items() if f"{name}_mean" in summary}
    table = pd.DataFrame(
        {
            "dataset": summary["dataset"] + summary["category"].map(lambda name: f" {name}" if name else ""),
            "method": summary["method"],
            "known class": summary["known_class"],
            "M": summary["n_anomalies"].mask(summary["method"] == UNTRAINED, 0),
            "AUC": [plus_minus(record, "auc") or "undefined" for record in records],
            "AP": [plus_minus(record, "ap") or "undefined" for record in records],
            **{title: [plus_minus(record, name) for record in records] for title, name in pixels.items()},
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
