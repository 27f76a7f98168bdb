"""The general setting: known anomalies of all classes."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.protocol import make_general_runs
from mpfm_kedro.pipelines.studies import SEEDS, create_setting


def create_pipeline(**_: object) -> Pipeline:
    """From raw images to the report of the general setting."""
    make = node(make_general_runs, ["samples", "params:n_anomalies", *SEEDS], "runs", name="make_general_runs")
    return create_setting("general", make)
