"""The stage features."""

from mpfm_kedro.pipelines.features.pipeline import create_pipeline

__all__ = ["create_pipeline"]
