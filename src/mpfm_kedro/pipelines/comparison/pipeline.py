"""Comparison: MPFM beside baselines and references, on the same features, splits and seeds."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.intervals import paired_differences
from mpfm_kedro.experiments.protocol import make_compared_runs
from mpfm_kedro.experiments.published import load_published
from mpfm_kedro.experiments.specifications import compared_specifications
from mpfm_kedro.experiments.trials import plan_compared_trials
from mpfm_kedro.pipelines import runs
from mpfm_kedro.pipelines.studies import BACKBONE, MPFM, SEEDS, create_study
from mpfm_kedro.reports.comparison import comparison_table, write_comparison, write_comparison_page
from mpfm_kedro.reports.study_figures import draw_comparison


def create_pipeline(**_: object) -> Pipeline:
    """All detectors, both settings, M = 10 and 1."""
    written = ["table", "origin", "params:first_seed"]
    report = [
        node(paired_differences, ["scores", "samples"], "differences", name="compare_with_mpfm"),
        node(load_published, "params:dataset", "published", name="load_published"),
        node(comparison_table, ["summary", "differences", "trials", "published"], "table", name="comparison_table"),
        node(write_comparison, written, "summary_text", name="write_comparison"),
        node(write_comparison_page, written, "report", name="write_comparison_page"),
        node(draw_comparison, "table", "plot", name="draw_comparison"),
    ]
    return create_study("comparison", plan_comparison(), report, baselines=True)


def plan_comparison() -> Pipeline:
    """The stage runs of a comparison, whose settings may differ in seeds, M and methods."""
    numbers = ["params:known_class", "params:comparison", *SEEDS]
    return runs.create_pipeline(
        node(make_compared_runs, ["samples", *numbers], "runs", name="make_compared_runs"),
        node(
            compared_specifications,
            [*MPFM, "params:comparison", BACKBONE],
            "specifications",
            name="list_specifications",
        ),
        node(plan_compared_trials, ["runs", "specifications", "params:comparison"], "trials", name="plan_trials"),
    )
