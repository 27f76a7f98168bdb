"""Prototypes: K-means++ initialisation of the prototype space and the flow's closed-form start."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.prototypes.nodes import initialise_prototypes, tabulate_modes


def create_pipeline(**_: object) -> Pipeline:
    """Initial models of the runs of one setting."""
    return Pipeline(
        [
            node(
                initialise_prototypes,
                ["runs", "features", "run_cache"]
                + ["params:prototypes", "params:repairs", "params:training", "params:compute"],
                "initial_models",
                name="initialise_prototypes",
            ),
            node(tabulate_modes, "initial_models", "modes", name="tabulate_modes"),
        ],
        namespace="prototypes",
        prefix_datasets_with_namespace=False,
    )
