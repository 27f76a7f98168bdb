"""A study: trials of many variants on the shared features, and what is made of their scores."""

from __future__ import annotations

from datetime import date
from functools import partial, update_wrapper
from typing import Any

import pandas as pd
from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.io.feature_store import Features
from mpfm_kedro.pipelines import features, ingestion, trials
from mpfm_kedro.pipelines.comparison.measures import measure_trials, summarise_trials
from mpfm_kedro.pipelines.reporting.history import keep
from mpfm_kedro.pipelines.settings import SHARED
from mpfm_kedro.provenance import code_revision


def create_study(
    name: str, list_variants: Node, tables: list[Node], n_anomalies: str = "params:n_anomalies"
) -> Pipeline:
    """The whole way from raw images to the tables of one study.

    Args:
        name: of the study.
        list_variants: the node that lists its variants.
        tables: the nodes that make its tables of summary and scores.
        n_anomalies: the parameter that holds M.
    """
    of_study = update_wrapper(partial(describe_origin, name), describe_origin)
    measured = [
        node(measure_trials, ["scores", "costs"], "run_metrics", name="measure_trials"),
        node(summarise_trials, "run_metrics", "summary", name="summarise_trials"),
        node(of_study, ["parameters", "runs", "features"], "origin", name="describe_origin"),
        node(keep, "table", "tidy_table", name="write_table"),
    ]
    own = Pipeline([*measured, *tables], namespace="tables", prefix_datasets_with_namespace=False)
    together = trials.create_pipeline(list_variants=list_variants, n_anomalies=n_anomalies) + own
    parameters = {item for item in together.inputs() if item.startswith("param")}
    study = Pipeline(together, inputs=SHARED, parameters=parameters, namespace=name)
    return ingestion.create_pipeline() + features.create_pipeline() + study


def describe_origin(study: str, parameters: dict[str, Any], runs: pd.DataFrame, features: Features) -> str:
    """How a table was made: pipeline, date, revision and the parameters that users set most."""
    named = ["dataset", "category", "known_class", "first_seed", "n_seeds", "backbone"]
    values = ", ".join(f"{name}={parameters[name]}" for name in named)
    numbers = ", ".join(str(number) for number in sorted(runs["n_anomalies"].unique(), reverse=True))
    return (
        f"Made by `kedro run --pipeline={study}` on {date.today().isoformat()}, revision {code_revision()}, "
        f"with {values}, image_size={features.store.spec.image_size}, M = {numbers}; the backbone is frozen."
    )
