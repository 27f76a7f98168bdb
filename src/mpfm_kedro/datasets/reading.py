"""Kedro datasets that are only read: what is below their path is written by something else, piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, TypeVar

from kedro.io import AbstractDataset

Read = TypeVar("Read")


class ReadOnlyDataset(AbstractDataset[None, Read]):
    """Base of datasets that hand out what is below ``filepath``; nothing there yet is no error."""

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self.metadata = metadata

    def save(self, data: None) -> NoReturn:
        """It is written elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} is only read: {self._path} is written elsewhere")

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}

    def _exists(self) -> bool:
        return True


class FolderDataset(ReadOnlyDataset[Path]):
    """A folder that nodes fill file by file."""

    def load(self) -> Path:
        """The folder."""
        return self._path
