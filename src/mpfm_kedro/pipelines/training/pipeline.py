"""Training: all that learns from known anomalies."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.training.nodes import train_detectors


def create_pipeline(**_: object) -> Pipeline:
    """Fitted detectors."""
    return Pipeline(
        [
            node(
                train_detectors,
                ["runs", "trials", "features", "initial_models", "model_cache", "params:device", "params:compute"],
                "models",
                name="train_detectors",
            )
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
