"""Comparison: MPFM beside rivals and references, on the same features, splits and seeds."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.comparison.intervals import paired_differences
from mpfm_kedro.pipelines.comparison.pictures import draw_comparison
from mpfm_kedro.pipelines.comparison.published import load_published
from mpfm_kedro.pipelines.comparison.tables import comparison_table, write_comparison, write_comparison_page
from mpfm_kedro.pipelines.studies import create_study
from mpfm_kedro.pipelines.trials.variants import compared_methods


def create_pipeline(**_: object) -> Pipeline:
    """All methods, both settings, M = 10 and 1."""
    tables = [
        node(paired_differences, ["scores", "samples"], "differences", name="compare_with_mpfm"),
        node(load_published, "params:dataset", "published", name="load_published"),
        node(comparison_table, ["summary", "differences", "methods", "published"], "table", name="comparison_table"),
        node(write_comparison, ["table", "origin"], "summary_text", name="write_comparison"),
        node(write_comparison_page, ["table", "origin"], "report", name="write_comparison_page"),
        node(draw_comparison, "table", "plot", name="draw_comparison"),
    ]
    return create_study(
        "comparison",
        node(compared_methods, "params:comparison", "variants", name="list_methods"),
        tables,
        n_anomalies="params:comparison.n_anomalies",
    )
