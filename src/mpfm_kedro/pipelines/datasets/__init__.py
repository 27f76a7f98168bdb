"""The list of datasets."""

from mpfm_kedro.pipelines.datasets.pipeline import create_pipeline

__all__ = ["create_pipeline"]
