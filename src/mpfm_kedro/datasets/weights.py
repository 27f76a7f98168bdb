"""The Kedro dataset of verified backbone weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kedro.io import AbstractDataset


@dataclass(frozen=True, eq=False)
class BackboneWeights:
    """The weights of a torchvision classifier (tensors by name), with the digest that names them."""

    name: str
    digest: str
    tensors: Mapping[str, Any]


class BackboneWeightsDataset(AbstractDataset[None, BackboneWeights]):
    """Weights of a torchvision classifier, obtained on the first load and cached below ``filepath``.

    Args:
        filepath: The folder of the verified copies.
        name: A classifier of ``torchvision.models``.
        weights_file: The user's own state dict, which takes precedence over every other origin.
        metadata: Free for plugins.
    """

    def __init__(
        self,
        filepath: str,
        name: str,
        weights_file: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._folder = Path(filepath)
        self._name = name
        self._weights_file = Path(weights_file) if weights_file else None
        self.metadata = metadata

    def load(self) -> BackboneWeights:
        """The weights, with the digest of their tensors."""
        # torch takes seconds to import, and Kedro imports this file at start-up
        from mpfm_kedro.backbones.weights import digest, obtain_weights

        tensors = obtain_weights(self._name, self._folder, self._weights_file)
        return BackboneWeights(self._name, digest(tensors), tensors)

    def save(self, data: None) -> NoReturn:
        """Weights are obtained, never saved."""
        raise NotImplementedError("backbone weights are obtained, not saved")

    def _describe(self) -> dict[str, Any]:
        file = str(self._weights_file) if self._weights_file else None
        return {"filepath": str(self._folder), "name": self._name, "weights_file": file}

    def _exists(self) -> bool:
        if self._weights_file:
            return self._weights_file.is_file()
        return (self._folder / f"{self._name}.safetensors").is_file()
