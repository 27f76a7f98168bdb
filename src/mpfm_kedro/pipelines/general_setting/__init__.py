"""The general setting."""

from mpfm_kedro.pipelines.general_setting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
