"""Runs: the only stage in which the settings differ."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.runs.nodes import make_general_runs, make_hard_runs


def create_pipeline(setting: str = "hard", **_: object) -> Pipeline:
    """The run table of one setting."""
    if setting == "general":
        make = node(
            make_general_runs,
            ["samples", "params:n_anomalies", "params:n_seeds", "params:first_seed"],
            "runs",
            name="make_general_runs",
        )
    else:
        make = node(
            make_hard_runs,
            ["samples", "params:known_class", "params:n_anomalies", "params:n_seeds", "params:first_seed"],
            "runs",
            name="make_hard_runs",
        )
    return Pipeline([make], namespace="runs", prefix_datasets_with_namespace=False)
