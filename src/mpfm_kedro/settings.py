"""Project settings, read by Kedro."""

from mpfm_kedro.configuration import ENVIRONMENTS, ProjectConfigLoader
from mpfm_kedro.hooks import (
    CheckFiles,
    CheckParameters,
    CheckPartialRun,
    ClearErrors,
    ProjectLogging,
    RememberRun,
    RunLocks,
    ShowSummary,
)

HOOKS = (
    ProjectLogging(),
    CheckParameters(),
    CheckPartialRun(),
    CheckFiles(),
    ClearErrors(),
    RunLocks(),
    RememberRun(),
    ShowSummary(),
)
CONFIG_LOADER_CLASS = ProjectConfigLoader
CONFIG_LOADER_ARGS = ENVIRONMENTS
