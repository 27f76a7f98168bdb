"""The hard setting."""

from mpfm_kedro.pipelines.hard_setting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
