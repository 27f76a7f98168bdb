"""The Kedro dataset of verified backbone weights."""

from pathlib import Path
from typing import Any

from mpfm_kedro.backbones.features import BackboneWeights
from mpfm_kedro.datasets.files import PathDataset


class BackboneWeightsDataset(PathDataset):
    """Weights of one or several backbones, obtained on the first load and cached below ``filepath``.

    ``weights_file`` is the user's state dict, which takes precedence over every other origin; of several backbones it
    belongs to the one that it fits.
    """

    def __init__(
        self,
        filepath: str,
        name: str | list[str],
        weights_file: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(filepath, metadata)
        self._names = [name] if isinstance(name, str) else list(name)
        self._weights_file = Path(weights_file) if weights_file else None

    def load(self) -> list[BackboneWeights]:
        """The weights of each backbone, with the digest of their tensors."""
        # torch takes seconds to import, and Kedro imports this file at start-up
        from mpfm_kedro.backbones.weights import digest, file_owner, obtain_weights

        owner = file_owner(self._names, self._weights_file) if self._weights_file else None
        loaded = []
        for name in self._names:
            tensors = obtain_weights(name, self.path, self._weights_file if name == owner else None)
            loaded.append(BackboneWeights(name, digest(tensors), tensors))
        return loaded

    def _describe(self) -> dict[str, Any]:
        return super()._describe() | {"name": self._names}

    def _exists(self) -> bool:
        cached = [(self.path / f"{name}.safetensors").is_file() for name in self._names]
        if self._weights_file:
            return self._weights_file.is_file() and sum(cached) >= len(cached) - 1
        return all(cached)
