"""Forecast: what the comparison of a dataset needs, of what is not there yet."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines import ingestion
from mpfm_kedro.pipelines.comparison.pipeline import plan_comparison
from mpfm_kedro.pipelines.features.nodes import plan_views
from mpfm_kedro.pipelines.forecast.nodes import forecast, locate_features, write_forecast
from mpfm_kedro.pipelines.studies import SHARED

STORED = ["backbone_weights", "feature_store"]


def create_pipeline(**_: object) -> Pipeline:
    """Ingestion, the plan of the comparison, and what it needs."""
    planned = plan_comparison()
    nodes = Pipeline(
        [
            node(plan_views, ["samples", "params:image_size", "params:features"], "views", name="plan_views"),
            node(
                locate_features,
                ["views", "images", *STORED, "params:device", "params:features"],
                ["planned_features", "extraction"],
                name="locate_features",
            ),
            node(
                forecast,
                ["samples", "runs", "trials", "planned_features", "extraction", "model_cache"]
                + ["params:device", "params:compute"],
                "need",
                name="forecast",
            ),
            node(write_forecast, ["need", "params:name"], "summary_text", name="write_forecast"),
        ],
        namespace="forecasting",
        prefix_datasets_with_namespace=False,
    )
    together = planned + nodes
    parameters = {item for item in together.inputs() if item.startswith("param")}
    shared = (SHARED | set(STORED)) & together.inputs()
    return ingestion.create_pipeline() + Pipeline(together, inputs=shared, parameters=parameters, namespace="forecast")
