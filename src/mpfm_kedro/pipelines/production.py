"""The inspection line: fit a production model, predict with it, teach it, export it."""

from functools import partial

from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.pipelines import audit, ingestion
from mpfm_kedro.pipelines.evaluation import evaluate_study
from mpfm_kedro.pipelines.export import export_network
from mpfm_kedro.pipelines.features import plan_mpfm_features
from mpfm_kedro.pipelines.fit import assemble_model, gather_samples, keep_model, summarise_model
from mpfm_kedro.pipelines.learn import add_images, compare_predictions, summarise_learning
from mpfm_kedro.pipelines.predict import predict_images, summarise_predictions
from mpfm_kedro.pipelines.runs import draw_learning_runs, draw_production_run
from mpfm_kedro.pipelines.scoring import score_images
from mpfm_kedro.pipelines.studies import mpfm_stages, study_node
from mpfm_kedro.reports.model import write_card
from mpfm_kedro.reports.predictions import write_page


def create_fit() -> Pipeline:
    """From raw images to a model folder: all normals and all known anomalies, none of which is kept for a test."""
    return ingestion.create_pipeline() + audit.create_pipeline() + Pipeline(_production("collection_before"))


def _production(collection: str) -> list[Node]:
    """From a sample table and a collection to a model folder."""
    new = partial(study_node, "production")
    gathered = ["samples", collection, "images", "params:ingestion"]
    extracted = ["production_samples", "images", "backbone_weights", "params:features", "params:compute"]
    read = ["production_samples", "models", "production_features", "images", "backbone_weights", "setting_summaries"]
    return [
        new(gather_samples, gathered, "production_samples", name="gather_samples"),
        new(plan_mpfm_features, extracted, "production_features", name="extract_features"),
        new(draw_production_run, ["production_samples", "params:protocol"], "runs", name="draw_runs"),
        *mpfm_stages("production", "production_features"),
        new(assemble_model, [*read, collection, "params:inspection"], "production_model", name="assemble_model"),
        new(summarise_model, "production_model", "summary_text", name="summarise_model"),
        new(write_card, "production_model", "card", name="write_card"),
        new(keep_model, "production_model", "model_version", name="keep_model"),
    ]


def create_predict() -> Pipeline:
    """From images to a table and a page."""
    new = partial(study_node, "predictions")
    read = ["production_model", "prediction_log", "batch_folder", "params:inspection", "params:ingestion"]
    return Pipeline(
        [
            new(predict_images, ["params:images", *read], "summary", name="predict_images"),
            new(summarise_predictions, ["summary", "production_model"], "summary_text", name="summarise_predictions"),
            new(write_page, ["summary", *read], "report", name="write_page"),
        ]
    )


def create_learn() -> Pipeline:
    """From images that were wrong to a new model, and a comparison with the one before."""
    wrong = ["params:images", "params:label", "collection_before", "samples", "model_before", "params:ingestion"]
    add = node(add_images, wrong, ["collection", "replaced_model"], name="add_images", tags="add_images")
    return ingestion.create_pipeline() + Pipeline([add, *_production("collection"), *_learning()])


def _learning() -> list[Node]:
    """The general setting before and after; earlier predictions by both models."""
    new = partial(study_node, "learning")
    both = ["replaced_model", "production_model"]
    compared = [*both, "collection", "earlier_predictions", "prediction_log", "params:inspection", "params:ingestion"]
    told = [*both, "changes", "run_metrics", "restore_commands"]
    scored = ["scores", "pixel_measures", "costs"]
    tested = ["models", "production_features", "production_samples", "images", "params:compute"]
    drawn = ["samples", "production_samples", "params:protocol"]
    return [
        new(draw_learning_runs, drawn, "runs", name="learning_draw_runs"),
        *mpfm_stages("learning", "production_features", "learning_"),
        new(score_images, tested, scored, name="learning_score_images"),
        new(evaluate_study, [*scored, "production_samples"], ["run_metrics", "summary"], name="learning_evaluate"),
        new(compare_predictions, compared, "changes", name="compare_predictions"),
        new(summarise_learning, told, "summary_text", name="summarise_learning"),
    ]


def create_export() -> Pipeline:
    """From a model folder to one ONNX file for other machines."""
    read = ["params:images", "production_model", "production_samples", "images", "export_folder"]
    return Pipeline([study_node("export", export_network, read, "summary_text", name="export_network")])
