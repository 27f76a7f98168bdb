"""Prototypes: the closed form with its prototypes of patches, and all else that knows no anomaly."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.prototypes.nodes import initialise_prototypes


def create_pipeline(**_: object) -> Pipeline:
    """Models before training."""
    return Pipeline(
        [
            node(
                initialise_prototypes,
                ["runs", "trials", "features", "model_cache", "params:device", "params:compute"],
                "initial_models",
                name="initialise_prototypes",
            )
        ],
        namespace="prototypes",
        prefix_datasets_with_namespace=False,
    )
