"""The stage evaluation."""

from mpfm_kedro.pipelines.evaluation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
