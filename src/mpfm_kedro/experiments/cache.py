"""Fitted pieces and scores on disk: safetensors with JSON in the header, cached by what they were made from."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mpfm_kedro.errors import InputError
from mpfm_kedro.files import AGAIN, BLANK, carries_checksum, is_intact, replacing, seal
from mpfm_kedro.provenance import key_digest

if TYPE_CHECKING:
    from mpfm_kedro.detectors.base import Artefact

logger = logging.getLogger(__name__)
SUFFIX = ".safetensors"
INDEX, CHECKSUM = "index.json", "checksum"


@dataclass(frozen=True)
class ArtefactFile:
    """One stored artefact; whether it exists is another question."""

    path: Path

    def exists(self) -> bool:
        """Whether the artefact is there."""
        return self.path.is_file()

    @cached_property
    def details(self) -> dict[str, Any]:
        """Everything but the tensors, from the header of the file."""
        self._check()
        return self._read_details()

    def problem(self) -> str:
        """What is wrong with the file: it is missing, or it is not as it was written; empty where it is whole."""
        try:
            if not is_intact(self.path):
                return "is damaged (it has not the checksum that it names)"
            self._read_details()
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            return f"is missing or damaged ({error})"
        return ""

    def is_cached(self) -> bool:
        """Whether the file is there and whole; a damaged one is named, and counts as missing.

        So does one without a checksum: everything in the cache was written with one.
        """
        if not self.exists():
            return False
        if problem := self.problem() or ("" if carries_checksum(self.path) else "has no checksum"):
            logger.warning("The cached %s %s and is computed again", self.path, problem)
        return not problem

    def _check(self) -> None:
        if problem := self.problem():
            raise InputError(f"{self.path} {problem}; {AGAIN}")

    def _read_details(self) -> dict[str, Any]:
        with safe_open(self.path, framework="np") as file:
            return json.loads(file.metadata()["details"])

    def digest(self) -> str:
        """Names the numbers; the header, which also says how long they took, does not count."""
        self._check()
        with self.path.open("rb") as file:
            file.seek(8 + int.from_bytes(file.read(8), "little"))
            return hashlib.file_digest(file, "sha256").hexdigest()[:24]

    def load(self) -> Artefact:
        """Tensors and details.

        In the file the tensors begin where the header ends, and dot products round by how their memory is aligned:
        copies give the same numbers whatever the header says.
        """
        from safetensors.torch import load_file  # with torch, which is slow to import

        from mpfm_kedro.detectors.base import Artefact

        details = self.details  # after a check of the whole file
        return Artefact({name: value.clone() for name, value in load_file(self.path).items()}, details)

    def save(self, artefact: Artefact) -> None:
        """Write tensors and details in one step, with a checksum of the file in its header."""
        from safetensors.torch import save_file

        tensors = {name: value.contiguous() for name, value in artefact.tensors.items()}
        with replacing(self.path, need=sum(value.nbytes for value in tensors.values())) as partial:
            save_file(tensors, partial, metadata={"details": json.dumps(artefact.details), "checksum": BLANK})
            seal(partial)

    def link_to(self, target: Path) -> None:
        """The same artefact under another name, sharing its disk blocks where the file system can."""
        try:
            with replacing(target) as partial:
                os.link(self.path, partial)
        except InputError:  # another file system, or one without links
            self.copy_to(target)

    def copy_to(self, target: Path) -> None:
        """A copy of its own under another name."""
        with replacing(target) as partial:
            shutil.copyfile(self.path, partial)

    def delete(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Cache:
    """Pieces, scores and checkpoints, each under a name made of its key."""

    root: Path

    def entry(self, kind: str, key: str) -> ArtefactFile:
        """The artefact of this key, whether or not it exists yet."""
        return ArtefactFile(self.root / f"{kind}-{key}{SUFFIX}")

    def restore(self, artefacts: dict[str, ArtefactFile]) -> dict[str, ArtefactFile]:
        """Copies of artefacts in the cache, under their own names; entries with other numbers are replaced."""
        restored = {name: ArtefactFile(self.root / artefact.path.name) for name, artefact in artefacts.items()}
        for name, artefact in artefacts.items():
            if restored[name].problem() or restored[name].digest() != artefact.digest():
                artefact.copy_to(restored[name].path)
        return restored


@dataclass
class CheckpointFile:
    """Where an interrupted fit stores its state, with the seconds spent so far."""

    file: ArtefactFile
    began: float = field(default_factory=time.monotonic)
    spent: float = 0.0

    def load(self) -> Artefact | None:
        """The last state, if there is one that can be read; another study may just have finished the same piece."""
        try:
            state = self.file.load() if self.file.exists() else None
        except (InputError, OSError, SafetensorError) as error:
            logger.warning("Starting again without the checkpoint: %s", error)
            state = None
        if state is None:
            return None
        self.spent = state.details["seconds"]
        return state

    def save(self, state: Artefact) -> None:
        """Replace the state."""
        state.details["seconds"] = self.seconds
        self.file.save(state)

    @property
    def seconds(self) -> float:
        """Spent so far, interrupted attempts included."""
        return self.spent + time.monotonic() - self.began


def save_folder(folder: Path, artefacts: dict[str, ArtefactFile], copy: bool = False, like: Path | None = None) -> None:
    """Put artefacts in a folder, each distinct one once, with an index of their names; others are removed.

    Args:
        folder: to write.
        artefacts: by name.
        copy: whether files are copied; otherwise they share their disk blocks with ``artefacts``.
        like: a folder copied before; copies with the same numbers there are shared.
    """
    for artefact in {artefact.path: artefact for artefact in artefacts.values()}.values():
        target = folder / artefact.path.name
        earlier = ArtefactFile(like / target.name) if like else None
        if earlier and not earlier.problem() and earlier.digest() == artefact.digest():
            earlier.link_to(target)
        elif copy:
            artefact.copy_to(target)
        elif target != artefact.path:
            artefact.link_to(target)
    index = {name: artefact.path.name for name, artefact in artefacts.items()}
    with replacing(folder / INDEX) as partial:
        partial.write_text(json.dumps({CHECKSUM: BLANK} | index, indent=1, ensure_ascii=False))
        seal(partial)
    for file in folder.glob(f"*{SUFFIX}"):
        if file.name not in index.values():
            file.unlink()


def load_folder(folder: Path) -> dict[str, ArtefactFile]:
    """The artefacts of a folder by name; tensors are read when they are needed."""
    try:
        if not is_intact(folder / INDEX):
            raise ValueError("it has not the checksum that it names")
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        index.pop(CHECKSUM, None)
        # a name, not a path: an index cannot lead out of its folder
        found = {name: ArtefactFile(folder / Path(file).name) for name, file in index.items()}
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"No models in {folder}: {INDEX} is missing or damaged; {AGAIN}") from error
    for artefact in found.values():
        if not artefact.exists():
            raise InputError(f"{artefact.path} is missing, which {folder / INDEX} names")
    return found


def cache_key(**parts: Any) -> str:
    """The key of something that is made from these parts."""
    return key_digest(parts)
