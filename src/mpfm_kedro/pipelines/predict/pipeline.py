"""Predict: score, decision and heat map of new images by a production model."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.predict.nodes import predict_images, summarise_predictions
from mpfm_kedro.reports.predictions import write_page

READ = ["model", "prediction_log", "overlays", "params:inspection", "params:ingestion"]


def create_pipeline(**_: object) -> Pipeline:
    """From images to a table and a page."""
    return Pipeline(
        [
            node(predict_images, ["params:images", *READ, "params:device"], "summary", name="predict_images"),
            node(summarise_predictions, "summary", "summary_text", name="summarise_predictions"),
            node(write_page, ["summary", *READ, "gallery"], "report", name="write_page"),
        ],
        inputs={"model": "production_model"} | {name: name for name in ("prediction_log", "overlays", "gallery")},
        parameters={"params:images", "params:inspection", "params:ingestion", "params:device"},
        namespace="predictions",
    )
