"""The stage ingestion."""

from mpfm_kedro.pipelines.ingestion.pipeline import create_pipeline

__all__ = ["create_pipeline"]
