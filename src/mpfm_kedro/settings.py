"""Project settings, read by Kedro."""

from mpfm_kedro.configuration import ENVIRONMENTS, ProjectConfigLoader
from mpfm_kedro.hooks import ProjectHooks

HOOKS = (ProjectHooks(),)
CONFIG_LOADER_CLASS = ProjectConfigLoader
CONFIG_LOADER_ARGS = ENVIRONMENTS
