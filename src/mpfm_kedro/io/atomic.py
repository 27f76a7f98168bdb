"""Files that are there whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from kedro_datasets.json import JSONDataset
from kedro_datasets.matplotlib import MatplotlibDataset
from kedro_datasets.pandas import CSVDataset, ParquetDataset
from kedro_datasets.text import TextDataset

from mpfm_kedro.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; it takes the name of ``path`` when all went well."""
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # the folder may not exist
            partial.unlink()


class _Atomic:
    """Mixin for file datasets without versions: ``save`` replaces the file in one step."""

    _filepath: PurePosixPath

    def save(self, data: Any) -> None:
        """Save through a temporary file."""
        target = self._filepath
        try:
            with replacing(Path(target)) as partial:
                self._filepath = PurePosixPath(partial)
                super().save(data)  # type: ignore[misc]
        finally:
            self._filepath = target


class AtomicCSVDataset(_Atomic, CSVDataset):
    """A CSV table, replaced in one step."""


class AtomicParquetDataset(_Atomic, ParquetDataset):
    """A Parquet table, replaced in one step."""


class AtomicJSONDataset(_Atomic, JSONDataset):
    """A JSON document, replaced in one step."""


class AtomicTextDataset(_Atomic, TextDataset):
    """A text, replaced in one step."""


class AtomicMatplotlibDataset(_Atomic, MatplotlibDataset):
    """A figure, replaced in one step."""
