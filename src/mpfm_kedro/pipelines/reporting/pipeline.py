"""Reporting: summary text, pictures, one HTML page, and the history of earlier results."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.reporting import nodes
from mpfm_kedro.pipelines.reporting.history import keep, record

KEPT = ["models", "scores", "run_metrics", "summary", "report", "record"]


def create_pipeline(**_: object) -> Pipeline:
    """Report of one setting, and its history; with the tag `report` alone, as DVC runs it, no history is kept."""
    report = Pipeline(
        [
            node(
                nodes.write_summary,
                ["summary", "summary_without_repeats"],
                "summary_text",
                name="write_summary",
            ),
            node(nodes.draw_roc_curves, ["scores", "run_metrics"], "roc_curves", name="draw_roc_curves"),
            node(nodes.draw_score_histograms, "scores", "score_histograms", name="draw_score_histograms"),
            node(nodes.draw_loss_curves, "history", "loss_curves", name="draw_loss_curves"),
            node(nodes.draw_prototype_usage, "history", "prototype_usage", name="draw_prototype_usage"),
            node(nodes.draw_sampled_features, "sampled_features", "sampled_plot", name="draw_sampled_features"),
            node(
                nodes.write_report,
                ["summary", "run_metrics", "scores", "history", "summary_without_repeats", "sampled_features"],
                "report",
                name="write_report",
            ),
        ],
        tags="report",
    )
    history = Pipeline(
        [
            node(record, ["parameters", "features", "models"], "record", name="record"),
            *(node(keep, name, f"{name}_kept", name=f"keep_{name}") for name in KEPT),
        ]
    )
    return Pipeline(report + history, namespace="reporting", prefix_datasets_with_namespace=False)
