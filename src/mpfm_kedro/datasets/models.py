"""The Kedro datasets of fitted pieces: the cache of all of them, and folders with those of one study."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from kedro.io import AbstractVersionedDataset, DatasetError, Version
from kedro_datasets._typing import TablePreview

from mpfm_kedro.datasets.previews import show_table
from mpfm_kedro.datasets.reading import ReadOnlyDataset
from mpfm_kedro.experiments.cache import INDEX, ArtefactFile, Cache, load_folder, save_folder


class CacheDataset(ReadOnlyDataset[Cache]):
    """The cache below ``filepath``, whose entries are written one by one."""

    def load(self) -> Cache:
        """The cache."""
        return Cache(self._path)


class ModelsDataset(AbstractVersionedDataset[dict[str, ArtefactFile], dict[str, ArtefactFile]]):
    """A folder of fitted pieces with an index of the trials that they belong to.

    The present models share their disk blocks with the cache. Versions are copies: a version shares unchanged files
    with the version before it, and with nothing else.
    """

    def __init__(self, filepath: str, version: Version | None = None, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(PurePosixPath(filepath), version, exists_function=_is_folder)
        self.metadata = metadata

    def load(self) -> dict[str, ArtefactFile]:
        """Pieces by ``run|method|piece``; tensors are read when they are needed."""
        return load_folder(Path(self._get_load_path()))

    def save(self, data: dict[str, ArtefactFile]) -> None:
        """Put the pieces in the folder."""
        folder = Path(self._get_save_path())
        if self._version is None:
            save_folder(folder, data)
        else:
            before = sorted(Path(self._filepath).glob(f"*/{folder.name}"))
            save_folder(folder, data, copy=True, like=before[-1] if before else None)

    def preview(self) -> TablePreview:
        """Which piece belongs to which trial, and what is short among its details, for kedro-viz."""
        rows = []
        for name, artefact in self.load().items():
            row: dict[str, Any] = dict(zip(("run", "method", "piece"), name.split("|"), strict=True))
            rows.append(row | {k: v for k, v in artefact.details.items() if isinstance(v, int | float | str)})
        return show_table(pd.DataFrame(rows))

    def _exists(self) -> bool:
        """Whether there are models; the folder of a version that was never written is not an error."""
        try:
            return Path(self._get_load_path(), INDEX).is_file()
        except DatasetError:
            return False

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath), "version": self._version}


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()
