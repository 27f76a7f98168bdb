"""The pipelines of the project: a table of contents."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from mpfm_kedro.configuration import pipeline_in_view
from mpfm_kedro.pipelines import audit, features, ingestion
from mpfm_kedro.pipelines.ablation import pipeline as ablation
from mpfm_kedro.pipelines.comparison import pipeline as comparison
from mpfm_kedro.pipelines.datasets import pipeline as datasets
from mpfm_kedro.pipelines.export import pipeline as export
from mpfm_kedro.pipelines.fit import pipeline as fit
from mpfm_kedro.pipelines.general_setting import pipeline as general_setting
from mpfm_kedro.pipelines.hard_setting import pipeline as hard_setting
from mpfm_kedro.pipelines.learn import pipeline as learn
from mpfm_kedro.pipelines.predict import pipeline as predict
from mpfm_kedro.pipelines.sensitivity import pipeline as sensitivity
from mpfm_kedro.pipelines.study import pipeline as study


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
