"""A study: the way from raw images to a report that all experiments share."""

from __future__ import annotations

from datetime import date
from functools import partial, update_wrapper
from typing import Any

import pandas as pd
from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.protocol import make_study_runs
from mpfm_kedro.experiments.specifications import setting_specifications
from mpfm_kedro.pipelines import audit, evaluation, features, ingestion, prototypes, reporting, runs, scoring, training
from mpfm_kedro.pipelines.reporting.pipeline import keep
from mpfm_kedro.provenance import code_revision

SHARED = {"samples", "images", "features", "model_cache"}
MPFM = ["params:prototypes", "params:repairs", "params:training"]
BACKBONE = "params:backbone"
SEEDS = ["params:n_seeds", "params:first_seed", "params:ingestion.group_split"]


def create_setting(setting: str, make_runs: Node) -> Pipeline:
    """A setting (general or hard): a study with MPFM and MPFM that knows no anomaly."""
    specifications = node(setting_specifications, [*MPFM, BACKBONE], "specifications", name="list_specifications")
    own = [evaluation.create_pipeline(of_setting=True), reporting.create_pipeline()]
    return _compose(setting, runs.create_pipeline(make_runs, specifications), own)


def create_study(name: str, planned: Pipeline, report: list[Node], baselines: bool = False) -> Pipeline:
    """A study of both settings.

    Args:
        name: of the study.
        planned: its stage runs.
        report: the nodes that make its tables and figures of summary and scores.
        baselines: whether it fits baselines, some of which read views of their own.
    """
    of_study = update_wrapper(partial(describe_origin, name), describe_origin)
    origin = node(of_study, ["parameters", "runs", "features"], "origin", name="describe_origin")
    written = node(keep, "table", "table_csv", name="write_table")
    own = [evaluation.create_pipeline(), reporting.create_pipeline([origin, *report, written])]
    return _compose(name, planned, own, baselines)


def plan_study(list_specifications: Node) -> Pipeline:
    """The stage runs of a study that tries every specification on all runs of the ablation's settings."""
    numbers = ["params:known_class", "params:n_anomalies", *SEEDS, "params:ablation.settings"]
    make = node(make_study_runs, ["samples", *numbers], "runs", name="make_study_runs")
    return runs.create_pipeline(make, list_specifications)


def _compose(name: str, planned: Pipeline, own: list[Pipeline], baselines: bool = False) -> Pipeline:
    """The stages in order; those before the runs are shared by all studies."""
    fitted = [prototypes.create_pipeline(), training.create_pipeline(), scoring.create_pipeline()]
    together = sum([*fitted, *own], planned)
    parameters = {item for item in together.inputs() if item.startswith("param")}
    study = Pipeline(together, inputs=SHARED, parameters=parameters, namespace=name)
    return ingestion.create_pipeline() + audit.create_pipeline() + features.create_pipeline(baselines) + study


def describe_origin(study: str, parameters: dict[str, Any], runs: pd.DataFrame, features: Features) -> str:
    """How a table was made: pipeline, date, revision and the parameters that users set most."""
    named = [
        "dataset",
        *(["name"] if parameters["name"] != parameters["dataset"] else []),
        "category",
        "known_class",
        "first_seed",
        "n_seeds",
        "backbone",
    ]
    shown = {name: " + ".join(each) if isinstance(each := parameters[name], list) else each for name in named}
    values = ", ".join(f"{name}={value}" for name, value in shown.items())
    numbers = ", ".join(str(number) for number in sorted(runs["n_anomalies"].unique(), reverse=True))
    return (
        f"Made by `kedro run --pipelines={study}` on {date.today().isoformat()}, revision {code_revision()}, "
        f"with {values}, image_size={features.store.spec.image_size}, M = {numbers}; the backbone is frozen."
    )
