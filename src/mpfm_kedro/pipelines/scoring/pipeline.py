"""Scoring: every test sample of every run."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.scoring.nodes import score_samples


def create_pipeline(**_: object) -> Pipeline:
    """Scores of one setting."""
    return Pipeline(
        [
            node(
                score_samples,
                ["runs", "features", "initial_models", "models", "params:device", "params:compute"],
                "scores",
                name="score_samples",
            )
        ],
        namespace="scoring",
        prefix_datasets_with_namespace=False,
    )
