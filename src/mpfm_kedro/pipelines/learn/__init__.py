"""The pipeline learn."""

from mpfm_kedro.pipelines.learn.pipeline import create_pipeline

__all__ = ["create_pipeline"]
