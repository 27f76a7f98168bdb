"""Configuration loading: the catalog may name a parameter, so that each has one source of truth."""

from __future__ import annotations

from typing import Any

from kedro.config import OmegaConfigLoader


class ProjectConfigLoader(OmegaConfigLoader):
    """OmegaConfigLoader with ``${param:name}`` in the catalog: the parameter as this run has it.

    Paths such as ``data/08_reporting/${param:dataset}`` follow ``--params=dataset=…`` and the environment,
    while the parameter files stay free of resolvers (other tools read them too).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        custom = dict(kwargs.pop("custom_resolvers", None) or {})
        super().__init__(*args, custom_resolvers={**custom, "param": self._parameter}, **kwargs)

    def _parameter(self, name: str) -> Any:
        value = self["parameters"]
        for part in name.split("."):
            value = value[part]
        return value
