"""Evaluation: metrics of every trial, and their summary over seeds."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.intervals import gain_of_known_anomalies
from mpfm_kedro.experiments.measures import (
    as_metrics,
    measure_trials,
    summarise,
    summarise_setting,
    summarise_without_repeats,
)


def create_pipeline(of_setting: bool = False, **_: object) -> Pipeline:
    """Metrics of one study; a setting's summary has its own columns, and is also made without repeated images."""
    nodes = [node(measure_trials, ["scores", "costs", "pixel_measures"], "run_metrics", name="measure_trials")]
    if of_setting:
        nodes += [
            node(summarise_setting, "run_metrics", "summary", name="summarise"),
            node(as_metrics, "summary", "metrics", name="as_metrics"),
            node(
                gain_of_known_anomalies,
                ["scores", "samples"],
                "differences",
                name="gain_of_known_anomalies",
            ),
            node(
                summarise_without_repeats,
                ["scores", "runs", "samples"],
                "summary_without_repeats",
                name="summarise_without_repeats",
            ),
        ]
    else:
        nodes.append(node(summarise, "run_metrics", "summary", name="summarise"))
    return Pipeline(nodes, namespace="evaluation", prefix_datasets_with_namespace=False)
