"""The report of one setting: summary for the terminal, and a page with figures."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.experiments.columns import UNTRAINED
from mpfm_kedro.experiments.measures import with_numbers
from mpfm_kedro.reports.figures import (
    draw_loss_curves,
    draw_prototype_usage,
    draw_roc_curves,
    draw_sampled_features,
    draw_score_histograms,
)
from mpfm_kedro.reports.layout import COVERS, plus_minus
from mpfm_kedro.reports.markup import embedded, page, paragraphs

PIXEL_TITLES = {"pixel AUC": "pixel_auroc", "AUPRO": "aupro", "pixel F1": "pixel_f1"}


def write_summary(summary: pd.DataFrame, without_repeats: pd.DataFrame | None = None) -> str:
    """The summary as a text table; where test images repeat others, also the one without them."""
    parts = [_shown(summary).to_string(index=False), COVERS]
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
) -> str:
    """One self-contained HTML page with the tables and figures."""
    figures = {
        "ROC curves (red: trained, grey: 0 iterations)": draw_roc_curves(scores, run_metrics),
        "Scores of the test images": draw_score_histograms(scores),
        "Training": draw_loss_curves(history),
    }
    if "used_prototypes" in history:
        figures["Prototypes of images in the trained flow"] = draw_prototype_usage(history)
    if sampled_features is not None:
        figures["Real and sampled features of normals, first run"] = draw_sampled_features(sampled_features)
    parts = [_html_table(_shown(summary)), *paragraphs([COVERS])]
    if without_repeats is not None and len(without_repeats):
        parts += [*paragraphs([_excluded(without_repeats)]), _html_table(_shown(without_repeats))]
    parts += paragraphs([f"'{UNTRAINED}' is the same model before it has learned from any anomaly."])
    parts += [*embedded(figures), "<h2>Runs</h2>", _html_table(run_metrics.round(4))]
    return page(f"MPFM on {run_metrics['dataset'].iloc[0]}, {run_metrics['setting'].iloc[0]} setting", parts)


def _shown(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns that are shown, measures as mean ± standard deviation; of pixels where there are masks."""
    records = with_numbers(summary).to_dict("records")
    pixels = {title: name for title, name in PIXEL_TITLES.items() if f"{name}_mean" in summary}
    return pd.DataFrame(
        {
            "dataset": summary["dataset"] + summary["category"].map(lambda name: f" {name}" if name else ""),
            "method": summary["method"],
            "known class": summary["known_class"].replace("", "(any)"),
            "M": summary["n_anomalies"],
            "AUC": [plus_minus(record, "auc") or "undefined" for record in records],
            "AP": [plus_minus(record, "ap") or "undefined" for record in records],
            **{title: [plus_minus(record, name) for record in records] for title, name in pixels.items()},
            "seeds": summary["n_seeds"],
        }
    )


def _excluded(without_repeats: pd.DataFrame) -> str:
    number = without_repeats["excluded"].astype(float).mean()
    return (
        "Some test images repeat a training image of their run or an earlier test image: "
        f"without them ({number:.3g} per run on average)"
    )


def _html_table(table: pd.DataFrame) -> str:
    return table.to_html(index=False, border=0)
