"""The log of predictions of one model: a line of JSON for each file, whatever the thresholds are."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpfm_kedro.atomic import explain
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.inspection.model import model_digest

LOGGED = ["score", "mode", *PART_COLUMNS, "flagged_by", "box", "area", "likeness", "error"]
STATE = ["size", "modified"]


@dataclass(frozen=True)
class PredictionLog:
    """Predictions of one model; lines are only ever appended."""

    file: Path

    @classmethod
    def of(cls, folder: Path, card: dict[str, Any]) -> PredictionLog:
        """The log of a model among those in a folder."""
        return cls(folder / f"{model_digest(card)}.jsonl")

    def read(self, only: Collection[str], names: Collection[str] = ()) -> dict[str, dict[str, Any]]:
        """The last line of each of these files, by path; of its values all, or those that are named.

        A line that cannot be parsed, such as one that was cut, does not count.
        """
        rows: dict[str, dict[str, Any]] = {}
        if self.file.is_file():
            with self.file.open("rb") as lines:
                for line in lines:
                    row = _parse(line)
                    if row is not None and row["path"] in only:
                        rows[row["path"]] = {name: row.get(name) for name in names} if names else row
        return rows

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add lines, and flush them to the disk."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab+") as log:
                if log.tell():
                    log.seek(-1, os.SEEK_END)
                    log.write(b"" if log.read(1) == b"\n" else b"\n")
                log.writelines(f"{json.dumps(row)}\n".encode() for row in rows)
                log.flush()
                os.fsync(log.fileno())
        except OSError as error:
            raise InputError(f"Cannot write {self.file}: {explain(error, self.file.parent)}") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for one that was cut or damaged."""
    try:
        row = json.loads(line)
        whole = isinstance(row["path"], str) and isinstance(row["error"], str) and {*STATE} <= row.keys()
        return row if whole and (row["error"] or isinstance(row["score"], float)) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
