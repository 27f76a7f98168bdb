"""The hard setting, from raw images to the report."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from mpfm_kedro.pipelines.settings import create_setting


def create_pipeline(**_: object) -> Pipeline:
    """All stages."""
    return create_setting("hard")
