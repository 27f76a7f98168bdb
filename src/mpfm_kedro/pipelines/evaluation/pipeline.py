"""Evaluation: metrics by run, summary over seeds."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.evaluation.nodes import as_metrics, measure_runs, summarise, summarise_without_repeats


def create_pipeline(**_: object) -> Pipeline:
    """Metrics of one setting."""
    return Pipeline(
        [
            node(
                measure_runs,
                ["scores", "runs", "initial_models", "models"],
                "run_metrics",
                name="measure_runs",
            ),
            node(summarise, "run_metrics", "summary", name="summarise"),
            node(as_metrics, "summary", "metrics", name="as_metrics"),
            node(
                summarise_without_repeats,
                ["scores", "runs", "samples"],
                "summary_without_repeats",
                name="summarise_without_repeats",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
