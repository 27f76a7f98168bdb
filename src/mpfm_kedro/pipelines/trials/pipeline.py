"""Trials: every variant of a study on every run."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.pipelines.trials.nodes import make_trial_runs, run_trials, tabulate_methods


def create_pipeline(list_variants: Node, n_anomalies: str, **_: object) -> Pipeline:
    """Scores of the variants that a node lists; ``n_anomalies`` is the parameter that holds M."""
    return Pipeline(
        [
            list_variants,
            node(
                make_trial_runs,
                ["samples", "params:known_class", n_anomalies, "params:n_seeds", "params:first_seed"],
                "runs",
                name="make_trial_runs",
            ),
            node(tabulate_methods, ["variants", "params:training"], "methods", name="tabulate_methods"),
            node(
                run_trials,
                ["runs", "features", "run_cache", "variants"]
                + ["params:prototypes", "params:repairs", "params:training", "params:device", "params:compute"],
                ["scores", "costs"],
                name="run_trials",
            ),
        ],
        namespace="trials",
        prefix_datasets_with_namespace=False,
    )
