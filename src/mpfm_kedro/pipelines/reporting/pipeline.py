"""Reporting: tables, figures and pages of a study; a setting also keeps versions of its results."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.experiments.models import sample_features, tabulate_history, tabulate_modes
from mpfm_kedro.experiments.versions import record
from mpfm_kedro.pipelines.reporting.nodes import keep_report, show_groups, show_mistakes
from mpfm_kedro.reports import figures
from mpfm_kedro.reports.setting import write_report, write_summary

VERSIONED = ["runs", "trials", "initial_models", "models", "scores", "run_metrics", "summary", "record"]


def create_pipeline(nodes: list[Node] | None = None, **_: object) -> Pipeline:
    """The report of a study made by its own nodes, or that of a setting, with versions.

    With the tag `report` alone, as DVC runs it, no versions are kept.
    """
    if nodes is not None:
        return Pipeline(nodes, namespace="reporting", prefix_datasets_with_namespace=False)
    report = Pipeline(
        [
            node(tabulate_modes, "initial_models", "modes", name="tabulate_modes"),
            node(tabulate_history, "models", "history", name="tabulate_history"),
            node(
                sample_features,
                ["runs", "features", "initial_models", "models"],
                "sampled_features",
                name="sample_features",
            ),
            node(
                write_summary,
                ["summary", "summary_without_repeats", "differences", "run_metrics"],
                "summary_text",
                name="write_summary",
            ),
            node(figures.draw_roc_curves, ["scores", "run_metrics"], "roc_curves", name="draw_roc_curves"),
            node(figures.draw_score_histograms, "scores", "score_histograms", name="draw_score_histograms"),
            node(figures.draw_loss_curves, "history", "loss_curves", name="draw_loss_curves"),
            node(figures.draw_prototype_usage, "history", "prototype_usage", name="draw_prototype_usage"),
            node(figures.draw_sampled_features, "sampled_features", "sampled_plot", name="draw_sampled_features"),
            node(show_groups, ["runs", "samples", "images", "initial_models"], "groups", name="show_groups"),
            node(
                show_mistakes,
                ["runs", "trials", "scores", "features", "samples", "images", "initial_models", "models"]
                + ["report_folder", "params:inspection", "params:device"],
                ["mistakes", "operating_points"],
                name="show_mistakes",
            ),
            node(
                write_report,
                ["summary", "run_metrics", "scores", "history", "summary_without_repeats", "sampled_features"]
                + ["differences", "mistakes", "operating_points", "groups"],
                "report",
                name="write_report",
            ),
        ],
        tags="report",
    )
    versions = Pipeline(
        [
            node(record, ["features", "models", "initial_models"], "record", name="record"),
            node(keep_report, "report", "report_version", name="keep_report"),
            *(node(keep, name, f"{name}_version", name=f"keep_{name}") for name in VERSIONED),
        ]
    )
    return Pipeline(report + versions, namespace="reporting", prefix_datasets_with_namespace=False)


def keep(result: Any) -> Any:
    """Keep a copy as a version."""
    return result
