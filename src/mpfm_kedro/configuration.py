"""Configuration loading: the catalog may name a parameter, so that each has one source of truth."""

from __future__ import annotations

from typing import Any

from kedro.config import OmegaConfigLoader
from omegaconf import OmegaConf


class ProjectConfigLoader(OmegaConfigLoader):
    """OmegaConfigLoader with ``${param:name}`` in the catalog: the parameter as this run has it.

    Paths such as ``data/08_reporting/${param:dataset}`` follow ``--params=dataset=…`` and the environment,
    while the parameter files stay free of resolvers (other tools read them too).
    """

    def __getitem__(self, key: str) -> Any:
        if key == "catalog":
            parameters = super().__getitem__("parameters")

            def resolve(name: str) -> Any:
                value = parameters
                for part in name.split("."):
                    value = value[part]
                return value

            # resolvers are global to the process: the loader that reads must be the one that answers
            OmegaConf.register_new_resolver("param", resolve, replace=True)
        return super().__getitem__(key)
