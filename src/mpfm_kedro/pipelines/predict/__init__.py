"""The pipeline predict."""

from mpfm_kedro.pipelines.predict.pipeline import create_pipeline

__all__ = ["create_pipeline"]
