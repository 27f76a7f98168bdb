"""The stage scoring."""

from mpfm_kedro.pipelines.scoring.pipeline import create_pipeline

__all__ = ["create_pipeline"]
