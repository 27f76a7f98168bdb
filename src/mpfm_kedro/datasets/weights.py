"""The Kedro dataset of verified backbone weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kedro.io import AbstractDataset


@dataclass(frozen=True, eq=False)
class BackboneWeights:
    """The weights of a backbone (tensors by name), with the digest that names them."""

    name: str
    digest: str
    tensors: Mapping[str, Any]


class BackboneWeightsDataset(AbstractDataset[None, list[BackboneWeights]]):
    """Weights of one or several backbones, obtained on the first load and cached below ``filepath``.

    Args:
        filepath: The folder of the verified copies.
        name: A backbone, or several.
        weights_file: The user's own state dict, which takes precedence over every other origin; of several backbones
            it belongs to the one that it fits.
        metadata: Free for plugins.
    """

    def __init__(
        self,
        filepath: str,
        name: str | list[str],
        weights_file: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._folder = Path(filepath)
        self._names = [name] if isinstance(name, str) else list(name)
        self._weights_file = Path(weights_file) if weights_file else None
        self.metadata = metadata

    def load(self) -> list[BackboneWeights]:
        """The weights of each backbone, with the digest of their tensors."""
        # torch takes seconds to import, and Kedro imports this file at start-up
        from mpfm_kedro.backbones.weights import digest, file_owner, obtain_weights

        owner = file_owner(self._names, self._weights_file) if self._weights_file else None
        loaded = []
        for name in self._names:
            tensors = obtain_weights(name, self._folder, self._weights_file if name == owner else None)
            loaded.append(BackboneWeights(name, digest(tensors), tensors))
        return loaded

    def save(self, data: None) -> NoReturn:
        """Weights are obtained, never saved."""
        raise NotImplementedError("backbone weights are obtained, not saved")

    def _describe(self) -> dict[str, Any]:
        file = str(self._weights_file) if self._weights_file else None
        return {"filepath": str(self._folder), "name": self._names, "weights_file": file}

    def _exists(self) -> bool:
        cached = [(self._folder / f"{name}.safetensors").is_file() for name in self._names]
        if self._weights_file:
            return self._weights_file.is_file() and sum(cached) >= len(cached) - 1
        return all(cached)
