"""The forecast of a comparison."""

from mpfm_kedro.pipelines.forecast.pipeline import create_pipeline

__all__ = ["create_pipeline"]
