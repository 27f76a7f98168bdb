"""The stage ingestion."""

from mpfm_kedro.pipelines.ingestion.pipeline import create_pipeline as create_pipeline
