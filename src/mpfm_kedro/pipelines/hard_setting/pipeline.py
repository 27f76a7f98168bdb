"""The hard setting: known anomalies of one class, tested on all the others."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.protocol import make_hard_runs
from mpfm_kedro.pipelines.studies import SEEDS, create_setting


def create_pipeline(**_: object) -> Pipeline:
    """From raw images to the report of the hard setting."""
    inputs = ["samples", "params:known_class", "params:n_anomalies", *SEEDS]
    return create_setting("hard", node(make_hard_runs, inputs, "runs", name="make_hard_runs"))
