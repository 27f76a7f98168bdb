"""The study sensitivity."""

from mpfm_kedro.pipelines.sensitivity.pipeline import create_pipeline

__all__ = ["create_pipeline"]
