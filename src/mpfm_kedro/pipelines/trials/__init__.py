"""The stage trials."""

from mpfm_kedro.pipelines.trials.pipeline import create_pipeline

__all__ = ["create_pipeline"]
