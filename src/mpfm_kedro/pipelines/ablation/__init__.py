"""The study ablation."""

from mpfm_kedro.pipelines.ablation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
