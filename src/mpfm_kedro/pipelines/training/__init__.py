"""The stage training."""

from mpfm_kedro.pipelines.training.pipeline import create_pipeline

__all__ = ["create_pipeline"]
