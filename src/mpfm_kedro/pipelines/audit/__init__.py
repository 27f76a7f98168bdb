"""The stage audit."""

from mpfm_kedro.pipelines.audit.pipeline import create_pipeline

__all__ = ["create_pipeline"]
