"""Hooks: parameters are checked before anything runs, errors are clear, and the summary is shown at the end."""

from __future__ import annotations

import logging
from typing import Any

from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import check_parameters

logger = logging.getLogger(__name__)


class ClearErrors:
    """Let the user's mistake speak, not the machinery that wrapped it on the way up."""

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """Raise the InputError that an error was caused by."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, InputError):
            cause = cause.__cause__
        if cause is not None and cause is not error:
            raise cause


class CheckParameters:
    """Refuse unknown parameters and wrong types before any node runs."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Check the parameters of this run."""
        check_parameters(context.config_loader["parameters"])


class ShowSummary:
    """Show the summary tables that a pipeline made on the terminal."""

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol, run_params: Any) -> None:
        """Log each summary text among the outputs."""
        for name in sorted(pipeline.all_outputs()):
            if name.split(".")[-1] == "summary_text":
                logger.info("\n%s", catalog.load(name))
