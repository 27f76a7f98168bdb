"""The pipelines of the project: a table of contents."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from mpfm_kedro.configuration import pipeline_in_view
from mpfm_kedro.pipelines import (
    ablation,
    audit,
    comparison,
    datasets,
    export,
    features,
    fit,
    general_setting,
    hard_setting,
    ingestion,
    learn,
    predict,
    sensitivity,
    study,
)


def register_pipelines() -> dict[str, Pipeline]:
    """All pipelines by name; kedro-viz shows the default one first, which there is the one that ran last."""
    pipelines = {
        "datasets": datasets.create_pipeline(),
        "ingestion": ingestion.create_pipeline(),
        "audit": ingestion.create_pipeline() + audit.create_pipeline(),
        "features": ingestion.create_pipeline() + features.create_pipeline(),
        "general_setting": general_setting.create_pipeline(),
        "hard_setting": hard_setting.create_pipeline(),
        "comparison": comparison.create_pipeline(),
        "ablation": ablation.create_pipeline(),
        "sensitivity": sensitivity.create_pipeline(),
        "study": study.create_pipeline(),
        "fit": fit.create_pipeline(),
        "predict": predict.create_pipeline(),
        "learn": learn.create_pipeline(),
        "export": export.create_pipeline(),
    }
    return {**pipelines, "__default__": pipelines.get(pipeline_in_view() or "", pipelines["hard_setting"])}
