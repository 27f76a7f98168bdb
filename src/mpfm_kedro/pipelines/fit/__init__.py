"""The pipeline fit."""

from mpfm_kedro.pipelines.fit.pipeline import create_pipeline

__all__ = ["create_pipeline"]
