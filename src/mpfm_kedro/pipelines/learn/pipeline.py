"""Learn: teach a production model the defect that it missed, or its false alarm, and say what changes."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.measures import measure_trials
from mpfm_kedro.pipelines import ingestion, prototypes, runs, scoring, training
from mpfm_kedro.pipelines.fit.pipeline import create_production
from mpfm_kedro.pipelines.learn.nodes import (
    add_images,
    compare_predictions,
    learning_specifications,
    plan_learning,
    summarise_learning,
)

MPFM = ["runs", "params:prototypes", "params:repairs", "params:training", "params:backbone"]
SHARED = {"samples", "production_samples", "model_cache", "production_model", "earlier_model"}
SHARED |= {"earlier_predictions", "prediction_log"}


def create_pipeline(**_: object) -> Pipeline:
    """From images that were wrong to a new model, and a comparison with the one before."""
    wrong = ["params:images", "params:label", "collection_before", "samples", "model_before", "params:ingestion"]
    added = Pipeline(
        [node(add_images, wrong, ["collection", "earlier_model"], name="add_images")],
        inputs={"collection_before", "samples", "model_before"},
        outputs={"collection", "earlier_model"},
        parameters={"params:images", "params:label", "params:ingestion"},
        namespace="collecting",
    )
    return ingestion.create_pipeline() + added + create_production() + _create_learning()


def _create_learning() -> Pipeline:
    """The general setting before and after, by the stages that every study has; earlier predictions by both models."""
    seen = ["samples", "production_samples", "params:first_seed"]
    planned = runs.create_pipeline(
        node(plan_learning, seen, "runs", name="plan_learning"),
        node(learning_specifications, MPFM, "specifications", name="list_specifications"),
    )
    both = ["earlier_model", "production_model"]
    compared = Pipeline(
        [
            node(measure_trials, ["scores", "costs"], "run_metrics", name="measure_trials"),
            node(
                compare_predictions,
                [
                    *both,
                    "earlier_predictions",
                    "prediction_log",
                    "params:inspection",
                    "params:ingestion",
                    "params:device",
                ],
                "compared",
                name="compare_predictions",
            ),
            node(summarise_learning, [*both, "compared", "run_metrics"], "summary_text", name="summarise_learning"),
        ],
        namespace="comparison",
        prefix_datasets_with_namespace=False,
    )
    scored = scoring.create_pipeline().to_outputs("scores", "costs")  # not the pixels
    together = planned + prototypes.create_pipeline() + training.create_pipeline() + scored + compared
    parameters = {item for item in together.inputs() if item.startswith("param")}
    inputs = {name: name for name in SHARED} | {"features": "production_features"}
    return Pipeline(together, inputs=inputs, parameters=parameters, namespace="learning")
