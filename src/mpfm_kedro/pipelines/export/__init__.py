"""The pipeline export."""

from mpfm_kedro.pipelines.export.pipeline import create_pipeline

__all__ = ["create_pipeline"]
