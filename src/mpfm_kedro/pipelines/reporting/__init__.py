"""The stage reporting."""

from mpfm_kedro.pipelines.reporting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
