"""The study comparison."""

from mpfm_kedro.pipelines.comparison.pipeline import create_pipeline

__all__ = ["create_pipeline"]
