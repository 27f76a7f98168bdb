"""Runs in one output folder that would mix their files: the second is refused.

Every run holds a lock of its own in ``<output_root>/locks``, and a file beside it says what the run uses. The operating
system releases the lock when the process ends, however it ends; what is not locked is a remnant and is deleted.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from mpfm_kedro.errors import InputError

DECISIVE = ("category", "data_root", "image_size", "backbone", "ingestion", "features")
NOT_DECISIVE = {"features.batch_size", "features.workers", "features.compile"}  # speed only


@dataclass(frozen=True)
class Use:
    """What one run uses in an output folder, and which process it is."""

    dataset: str
    studies: list[str]  # whose results are written, by this run alone
    tables: dict[str, Any] | None = None  # parameters that decide the shared tables; None for a run that uses none
    process: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    started: str = field(default_factory=lambda: f"{datetime.now():%Y-%m-%d %H:%M:%S}")


def table_parameters(parameters: Mapping[str, Any], project: Path) -> dict[str, Any]:
    """The parameters that decide the shared tables of a dataset, by their dotted names."""
    decisive = {name: parameters[name] for name in DECISIVE}
    decisive["data_root"] = str((project / parameters["data_root"]).resolve())
    return {name: value for name, value in dotted(decisive).items() if name not in NOT_DECISIVE}


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


@contextmanager
def locked(output_root: Path, use: Use) -> Iterator[None]:
    """Hold what ``use`` names in ``output_root``; an InputError says which other run already does."""
    folder = output_root / "locks"
    note = folder / f"{uuid4().hex}.json"
    lock = FileLock(note.with_suffix(".lock"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "mutex"):  # one run at a time looks around and enters
            for other in _running(folder):
                if use.dataset == other.dataset:
                    _refuse_conflict(use, other, output_root)
            lock.acquire()
            note.write_text(json.dumps(asdict(use)))
    except OSError as error:
        raise InputError(f"Cannot lock {folder}: {error.strerror or error}; choose another output_root") from error
    try:
        yield
    finally:
        lock.release()
        _delete(note)


def _running(folder: Path) -> Iterator[Use]:
    for note in folder.glob("*.json"):
        try:
            with FileLock(note.with_suffix(".lock"), timeout=0):
                _delete(note)
        except Timeout:
            with suppress(FileNotFoundError):  # its run has just ended
                yield Use(**json.loads(note.read_text()))


def _delete(note: Path) -> None:
    for file in (note, note.with_suffix(".lock")):
        file.unlink(missing_ok=True)


def _refuse_conflict(use: Use, other: Use, output_root: Path) -> None:
    run = f"another run (process {other.process} on {other.host}, started {other.started})"
    advice = "wait for it or choose another output_root"
    for study in (name for name in use.studies if name in other.studies):
        raise InputError(
            f"Dataset '{use.dataset}', study '{study}': {run} is writing these results in {output_root}; {advice}"
        )
    ours, theirs = use.tables or {}, other.tables or {}
    for name in sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]):
        raise InputError(
            f"Dataset '{use.dataset}': {run} uses its tables in {output_root} with {name}={theirs[name]}, "
            f"this one has {name}={ours[name]}; {advice}"
        )
