"""Scoring: every test sample of every trial, and its pixels where there are masks."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.scoring.nodes import measure_pixels, score_samples


def create_pipeline(**_: object) -> Pipeline:
    """Scores of one study."""
    return Pipeline(
        [
            node(
                score_samples,
                ["runs", "trials", "features", "initial_models", "models", "model_cache"]
                + ["params:device", "params:compute"],
                ["scores", "costs"],
                name="score_samples",
            ),
            node(
                measure_pixels,
                ["runs", "trials", "samples", "images", "features", "initial_models", "models", "model_cache"]
                + ["params:device", "params:compute"],
                "pixel_measures",
                name="measure_pixels",
            ),
        ],
        namespace="scoring",
        prefix_datasets_with_namespace=False,
    )
