"""The stage prototypes."""

from mpfm_kedro.pipelines.prototypes.pipeline import create_pipeline

__all__ = ["create_pipeline"]
