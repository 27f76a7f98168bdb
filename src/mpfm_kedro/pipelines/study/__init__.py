"""The report of a study over several datasets."""

from mpfm_kedro.pipelines.study.pipeline import create_pipeline

__all__ = ["create_pipeline"]
