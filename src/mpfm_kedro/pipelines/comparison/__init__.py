"""The study comparison: from the scores of trials to tables, intervals and pictures."""

from mpfm_kedro.pipelines.comparison.pipeline import create_pipeline

__all__ = ["create_pipeline"]
