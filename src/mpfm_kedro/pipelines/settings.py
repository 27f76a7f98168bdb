"""A setting: the stages that all settings share, and those that are its own."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from mpfm_kedro.pipelines import (
    audit,
    evaluation,
    features,
    ingestion,
    prototypes,
    reporting,
    runs,
    scoring,
    training,
)

SHARED = {"samples", "features", "run_cache"}


def create_setting(setting: str) -> Pipeline:
    """The whole way from raw images to the report of one setting (general or hard)."""
    own = [
        runs.create_pipeline(setting=setting),
        prototypes.create_pipeline(),
        training.create_pipeline(),
        scoring.create_pipeline(),
        evaluation.create_pipeline(),
        reporting.create_pipeline(),
    ]
    together = sum(own, Pipeline([]))
    parameters = {name for name in together.inputs() if name.startswith("params:")}
    stages = Pipeline(together, inputs=SHARED, parameters=parameters, namespace=setting)
    return ingestion.create_pipeline() + audit.create_pipeline() + features.create_pipeline() + stages
