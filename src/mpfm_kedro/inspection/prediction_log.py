"""The log of predictions: what one model said of files, a line for each, whatever the thresholds are."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mpfm_kedro.detectors.mpfm.calibration import PARTS
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import explain
from mpfm_kedro.inspection.model import model_digest

PART_COLUMNS = [f"score_{part}" for part in PARTS]


class Logged(NamedTuple):
    """What the log says of a file: its size and date, and the columns of the table."""

    size: int
    modified: int
    score: float
    mode: int
    score_g: float
    score_a: float
    score_r: float
    score_n: float
    flagged_by: str
    box: str
    area: float
    error: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Logged:
        """From a line of the log; a file that could not be read lacks most of it."""
        return cls(*(row.get(name) for name in cls._fields))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PredictionLog:
    """What one model said of files: a line of JSON for each, only ever appended."""

    file: Path

    @classmethod
    def of(cls, folder: Path, card: dict[str, Any]) -> PredictionLog:
        """The log of a model among those in a folder."""
        return cls(folder / f"{model_digest(card)}.jsonl")

    def read(self, only: Collection[str]) -> dict[str, dict[str, Any]]:
        """All that the last line of each of these files says, by path."""
        return {row["path"]: row for row in self._rows() if row["path"] in only}

    def known(self, only: Collection[str]) -> dict[str, Logged]:
        """What the table needs of the last line of each of these files, by path: less than 1 KB for each."""
        return {row["path"]: Logged.of(row) for row in self._rows() if row["path"] in only}

    def _rows(self) -> Iterator[dict[str, Any]]:
        """All lines but those that were cut or damaged."""
        if self.file.is_file():
            with self.file.open("rb") as lines:
                yield from (row for line in lines if (row := _parse(line)) is not None)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add lines, and see that they are on the disk."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as log:
                if log.tell() and not _ends_a_line(self.file):
                    log.write("\n")
                log.writelines(_format(row) for row in rows)
                log.flush()
                os.fsync(log.fileno())
        except OSError as error:
            raise InputError(f"Cannot write {self.file}: {explain(error, self.file.parent)}") from error


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as content:
        content.seek(-1, os.SEEK_END)
        return content.read(1) == b"\n"


def _format(row: dict[str, Any]) -> str:
    """A line of the log: JSON, a tab, and its checksum."""
    content = json.dumps(row)
    return f"{content}\t{zlib.crc32(content.encode()):08x}\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for one that was cut or damaged."""
    content, _, checksum = line.rstrip(b"\n").partition(b"\t")
    try:
        row = json.loads(content)
        whole = int(checksum, 16) == zlib.crc32(content)
        return row if whole and isinstance(row["path"], str) and {"size", "modified", "error"} <= row.keys() else None
    except (ValueError, KeyError, TypeError):
        return None
