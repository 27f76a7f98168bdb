"""The memory of fits: one immutable file per fit, named by the key of all that decides its numbers.

``<root>/<stage>/<key>.safetensors`` appears by a rename when it is whole. So a killed process loses at most the fit
under way, and of two processes that make the same fit one replaces equal bytes. Seconds, dates and revisions are in
``<root>/log``: a fit holds nothing that differs between two runs.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mpfm_kedro.atomic import first_line, replacing
from mpfm_kedro.errors import InputError
from mpfm_kedro.provenance import code_revision

if TYPE_CHECKING:
    from mpfm_kedro.detectors.base import Artefact

logger = logging.getLogger(__name__)
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Entry:
    """A place in the memory: the stage of a fit, and the key of all that decides its numbers."""

    stage: str
    key: str


@dataclass(frozen=True)
class Memory:
    """Fits below a folder, by stage and key."""

    root: Path

    def file(self, entry: Entry) -> Path:
        """Where a fit is, or will be."""
        return self.root / entry.stage / f"{entry.key}{SUFFIX}"

    def has(self, entry: Entry) -> bool:
        """Whether a fit is there; a file that cannot be read is named and counts as missing."""
        if not self.file(entry).is_file():
            return False
        try:
            self.details(entry)
        except InputError as error:
            logger.warning("%s; it is computed again", error)
            return False
        return True

    def details(self, entry: Entry) -> dict[str, Any]:
        """All of a fit but its tensors."""
        return read_details(self.file(entry))

    def load(self, entry: Entry) -> Artefact:
        """A fit."""
        return read_artefact(self.file(entry))

    def save(self, entry: Entry, artefact: Artefact, seconds: float) -> None:
        """Keep a fit."""
        write_artefact(self.file(entry), artefact)
        said = {"seconds": round(seconds, 2), "made": datetime.now(UTC).isoformat(timespec="seconds")}
        with replacing(self._log(entry)) as file:
            file.write_text(json.dumps(said | {"revision": code_revision()}), encoding="utf-8")

    def seconds(self, entry: Entry) -> float:
        """How long a fit took; not a number where it was made elsewhere."""
        try:
            return float(json.loads(self._log(entry).read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError):
            return float("nan")

    def checkpoint(self, entry: Entry) -> Checkpoint:
        """Where an interrupted fit keeps its state."""
        return Checkpoint(self.root / "checkpoints" / f"{entry.key}{SUFFIX}")

    def _log(self, entry: Entry) -> Path:
        return self.root / "log" / entry.stage / f"{entry.key}.json"


@dataclass
class Checkpoint:
    """The state of an interrupted fit, with the seconds spent so far."""

    file: Path
    spent: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def load(self) -> Artefact | None:
        """The last state, if there is one that can be read."""
        try:
            state = read_artefact(self.file) if self.file.is_file() else None
        except InputError as error:
            logger.warning("Starting again without the checkpoint: %s", error)
            state = None
        if state is not None:
            self.spent = state.details["seconds"]
        return state

    def save(self, state: Artefact) -> None:
        """Replace the state."""
        state.details["seconds"] = self.seconds
        write_artefact(self.file, state)

    @property
    def seconds(self) -> float:
        """Spent so far, interrupted attempts included."""
        return self.spent + time.monotonic() - self.began

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        try:
            return int(read_details(self.file)["epoch"]) if self.file.is_file() else 0
        except (InputError, KeyError):  # finished and deleted just now
            return 0


def write_artefact(file: Path, artefact: Artefact) -> None:
    """Write tensors and details in one step; equal artefacts give equal bytes."""
    from safetensors.torch import save  # with torch, which is slow to import

    tensors = {name: value.contiguous() for name, value in sorted(artefact.tensors.items())}
    details = json.dumps(artefact.details, sort_keys=True)  # more than one key would be written in random order
    with replacing(file, need=sum(value.nbytes for value in tensors.values())) as partial:
        partial.write_bytes(save(tensors, metadata={"details": details}))


def read_artefact(file: Path) -> Artefact:
    """What was written.

    In the file the tensors begin where the header ends, and dot products round by how their memory is aligned: copies
    give the same numbers whatever the header says.
    """
    from safetensors.torch import load_file

    from mpfm_kedro.detectors.base import Artefact

    details = read_details(file)
    return Artefact({name: value.clone() for name, value in load_file(file).items()}, details)


def read_details(file: Path) -> dict[str, Any]:
    """All but the tensors."""
    try:
        with safe_open(file, framework="np") as opened:
            return json.loads(opened.metadata()["details"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is missing or damaged ({first_line(error)})") from error
