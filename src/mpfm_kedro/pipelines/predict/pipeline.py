"""Predict: score, decision and heat map of new images by a production model."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.predict.nodes import predict_images, summarise_predictions
from mpfm_kedro.reports.predictions import write_page


def create_pipeline(**_: object) -> Pipeline:
    """From images to a table and a page."""
    return Pipeline(
        [
            node(
                predict_images,
                ["params:images", "production.model", "prediction_log", "overlays", "params:inspection"]
                + ["params:device"],
                "predictions.summary",
                name="predict_images",
            ),
            node(
                summarise_predictions,
                "predictions.summary",
                "predictions.summary_text",
                name="summarise_predictions",
            ),
            node(
                write_page,
                ["predictions.summary", "production.model", "prediction_log", "overlays", "gallery"]
                + ["params:inspection"],
                "predictions.report",
                name="write_page",
            ),
        ],
    )
