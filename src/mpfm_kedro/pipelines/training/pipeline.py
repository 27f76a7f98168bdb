"""Training: flow, prototypes and heads of every run."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.training.nodes import sample_features, tabulate_history, train_models


def create_pipeline(**_: object) -> Pipeline:
    """Trained models of the runs of one setting."""
    return Pipeline(
        [
            node(
                train_models,
                ["runs", "features", "initial_models", "run_cache"]
                + ["params:device", "params:training", "params:repairs", "params:compute"],
                "models",
                name="train_models",
            ),
            node(tabulate_history, "models", "history", name="tabulate_history"),
            node(sample_features, ["runs", "features", "models"], "sampled_features", name="sample_features"),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
