"""The stage runs."""

from mpfm_kedro.pipelines.runs.pipeline import create_pipeline

__all__ = ["create_pipeline"]
