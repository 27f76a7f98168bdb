"""Hooks: parameters are checked and results locked before a run, errors are clear, the summary is shown at the end."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.framework.project import LOGGING
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from mpfm_kedro.errors import InputError
from mpfm_kedro.locks import Use, locked, table_parameters
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


class ProjectLogging:
    """Log as the project's ``conf/logging.yml`` says from any folder; Kedro looks for it in the current one alone."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Configure logging unless Kedro has found a configuration."""
        file = context.project_path / "conf/logging.yml"
        found = "KEDRO_LOGGING_CONFIG" in os.environ or Path("conf/logging.yml").is_file()
        if file.is_file() and not found:
            LOGGING.configure(yaml.safe_load(file.read_text(encoding="utf-8")))


class CheckParameters:
    """Refuse unknown parameters and wrong types before any node runs."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Check the parameters of this run."""
        check_parameters(context.config_loader["parameters"])


class RunLocks:
    """Refuse a run whose files would mix with those of another one in the same output folder."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None
        self._held = ExitStack()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the parameters of the coming run are."""
        self._context = context

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Lock what the pipeline uses; an interrupted run of this process may still hold its own."""
        self._held.close()
        assert self._context is not None
        project, parameters = self._context.project_path, self._context.config_loader["parameters"]
        studies, tables = used_results(pipeline)
        if studies or tables:
            decisive = table_parameters(parameters, project) if tables else None
            use = Use(parameters["dataset"], sorted(studies), decisive)
            self._held.enter_context(locked(project / parameters["output_root"], use))

    @hook_impl(trylast=True)
    def after_pipeline_run(self) -> None:
        """Release after all other hooks, which still read results."""
        self._held.close()

    @hook_impl(tryfirst=True)
    def on_pipeline_error(self) -> None:
        """Release before another hook raises."""
        self._held.close()


def used_results(pipeline: Pipeline) -> tuple[set[str], set[str]]:
    """Studies whose results a pipeline writes, and the shared tables that it reads or writes.

    The results of a study are named ``<study>.<name>``, or as the study itself; all others are shared.
    """
    studies = {name.split(".")[0] for name in pipeline.all_outputs() if "." in name}
    plain = {name for name in pipeline.datasets() if "." not in name and not name.startswith("param")}
    return studies, plain - studies


class ShowSummary:
    """Show the summary tables that a pipeline made on the terminal."""

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol, run_params: Any) -> None:
        """Log each summary text among the outputs."""
        for name in sorted(pipeline.all_outputs()):
            if name.split(".")[-1] == "summary_text":
                logger.info("\n%s", catalog.load(name))
