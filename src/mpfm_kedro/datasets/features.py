"""The Kedro datasets of verified backbone weights and of the features of a dataset."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
from kedro_datasets._typing import TablePreview

from mpfm_kedro.atomic import load_table, save_table
from mpfm_kedro.backbones.features import BackboneWeights, Features
from mpfm_kedro.backbones.store import FeatureSpec, FeatureStore
from mpfm_kedro.datasets.files import PathDataset
from mpfm_kedro.datasets.previews import show_table
from mpfm_kedro.errors import InputError


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


class FeaturesDataset(PathDataset):
    """The views of a dataset as Parquet, with the specifications of the stores that have their features.

    Row numbers are not saved: they depend on the order of work, and are looked up in the store.
    """

    def __init__(self, filepath: str, store: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(filepath, metadata)
        self._root = Path(store)

    def load(self) -> Features:
        """Index and stores, which must have a row for each view."""
        table = load_table(self.path)
        first, others = json.loads(table.attrs.pop("spec")), json.loads(table.attrs.pop("beside", "[]"))
        return replace(self._locate(table, first), others=tuple(self._locate(table, raw) for raw in others))

    def _locate(self, table: pd.DataFrame, raw: dict[str, Any]) -> Features:
        if set(raw) != {part.name for part in fields(FeatureSpec)} or "item" not in table:
            raise InputError(f"{self.path} is of another version; replace it with kedro run --pipelines=features")
        spec: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in raw.items()}
        return Features.locate(table, FeatureStore(self._root).open(FeatureSpec(**spec)))

    def save(self, data: Any) -> None:
        """Extract what the store lacks, then write the views."""
        data = data.run(FeatureStore(self._root))
        table = data.index.drop(columns="row")
        first, *others = [asdict(spec) for spec in data.specs]
        table.attrs = {"spec": json.dumps(first), "beside": json.dumps(others)}
        save_table(table, self.path)

    def preview(self, nrows: int = 20) -> TablePreview:
        """The first rows of the index, for kedro-viz."""
        return show_table(pd.read_parquet(self.path).head(nrows))

    def _exists(self) -> bool:
        return self.path.is_file()
