"""Project settings, read by Kedro."""

from mpfm_kedro.configuration import ProjectConfigLoader
from mpfm_kedro.hooks import (
    CheckFiles,
    CheckParameters,
    ClearErrors,
    ProjectLogging,
    RunLocks,
    ShowSummary,
    StageTimes,
)

HOOKS = (
    ProjectLogging(),
    CheckParameters(),
    CheckFiles(),
    ClearErrors(),
    RunLocks(),
    StageTimes(),
    ShowSummary(),
)
CONFIG_LOADER_CLASS = ProjectConfigLoader
CONFIG_LOADER_ARGS = {"base_env": "base", "default_run_env": "local", "merge_strategy": {"parameters": "soft"}}
