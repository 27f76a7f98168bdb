"""Fit: a production model from all normals and all known anomalies; nothing is kept for a test."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.protocol import make_production_run
from mpfm_kedro.pipelines import ingestion, prototypes, runs, training
from mpfm_kedro.pipelines.features.nodes import extract_features, plan_mpfm_views
from mpfm_kedro.pipelines.fit.nodes import assemble_model, gather_samples, production_specifications, summarise_model
from mpfm_kedro.pipelines.reporting.pipeline import keep
from mpfm_kedro.reports.model import write_card

SHARED = {"samples", "images", "backbone_weights", "feature_store", "model_cache", "collection", "evaluation"}
SHOWN = {"all_samples": "production_samples", "features": "production_features", "model": "production_model"}
STORE = ["images", "backbone_weights", "feature_store", "params:device", "params:features", "params:compute"]
MPFM = ["runs", "params:prototypes", "params:repairs", "params:training", "params:backbone"]


def create_pipeline(**_: object) -> Pipeline:
    """From raw images to a model folder."""
    return ingestion.create_pipeline() + create_production()


def create_production() -> Pipeline:
    """From a sample table and a collection to a model folder, by the stages that every study has."""
    gathered = Pipeline(
        [
            node(gather_samples, ["samples", "collection", "images"], "all_samples", name="gather_samples"),
            node(plan_mpfm_views, ["all_samples", "params:image_size", "params:features"], "views", name="plan_views"),
            node(extract_features, ["views", *STORE], "features", name="extract_features"),
        ],
        namespace="features",
        prefix_datasets_with_namespace=False,
    )
    planned = runs.create_pipeline(
        node(make_production_run, ["all_samples", "params:first_seed"], "runs", name="make_production_run"),
        node(production_specifications, MPFM, "specifications", name="list_specifications"),
    )
    assembled = Pipeline(
        [
            node(
                assemble_model,
                ["all_samples", "runs", "trials", "features", "initial_models", "models", "images", "backbone_weights"]
                + ["evaluation", "collection", "params:inspection", "params:device"],
                "model",
                name="assemble_model",
            ),
            node(summarise_model, "model", "summary_text", name="summarise_model"),
            node(write_card, "model", "card", name="write_card"),
            node(keep, "model", "model_version", name="keep_model"),
        ],
        namespace="assembly",
        prefix_datasets_with_namespace=False,
    )
    together = gathered + planned + prototypes.create_pipeline() + training.create_pipeline() + assembled
    parameters = {item for item in together.inputs() if item.startswith("param")}
    return Pipeline(together, inputs=SHARED, outputs=SHOWN, parameters=parameters, namespace="production")
