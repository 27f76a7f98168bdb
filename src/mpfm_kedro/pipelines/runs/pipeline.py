"""Runs: which samples train and which test, and which detectors are tried on them; here alone studies differ."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.experiments.trials import plan_trials


def create_pipeline(make_runs: Node, list_specifications: Node, plan: Node | None = None) -> Pipeline:
    """Run table and trial table of one study; ``plan`` makes the latter where it is not every run × specification."""
    every = node(plan_trials, ["runs", "specifications"], "trials", name="plan_trials")
    return Pipeline(
        [make_runs, list_specifications, plan or every],
        namespace="runs",
        prefix_datasets_with_namespace=False,
    )
