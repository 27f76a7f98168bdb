"""Rows of numbers in a file, each with a checksum that is verified when the row is first read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np


def checksum(key: str, row: np.ndarray) -> int:
    """CRC-32 of a row and its key: neither a changed number nor a key in the wrong place goes unnoticed."""
    return zlib.crc32(np.ascontiguousarray(row).data.cast("B"), zlib.crc32(key.encode("utf-8", "surrogateescape")))


class CheckedRows:
    """The rows of a file, read like an array; a row is verified when this process reads it for the first time.

    Args:
        file: with the numbers.
        values: the file as an array, memory-mapped (rows, …).
        keys: of the rows.
        checksums: of the rows.
        report: called with the damaged rows among those that were asked for; it raises.
    """

    def __init__(
        self,
        file: Path,
        values: np.ndarray,
        keys: Sequence[str],
        checksums: np.ndarray,
        report: Callable[[list[int]], None],
    ) -> None:
        self._values, self._keys, self._checksums, self._report = values, keys, checksums, report
        self.shape, self.dtype, self.itemsize = values.shape, values.dtype, values.itemsize
        found = file.stat()
        self._verified = _verified_rows(file, found.st_ino, found.st_mtime_ns, len(values))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = np.atleast_1d(np.arange(len(self))[index])
        new = rows[~self._verified[rows]].tolist()
        if damaged := self.damaged(dict.fromkeys(new)):
            self._report(damaged)
        self._verified[new] = True
        return self._values[index]

    def damaged(self, rows: Iterable[int]) -> list[int]:
        """Those of some rows that are not as they were written."""
        return [row for row in rows if checksum(self._keys[row], self._values[row]) != self._checksums[row]]


@lru_cache(maxsize=16)
def _verified_rows(file: Path, number: int, modified: int, rows: int) -> np.ndarray:
    """Which rows of a file this process has verified; shared by all that read the file while it does not change."""
    return np.zeros(rows, dtype=bool)
