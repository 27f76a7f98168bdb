"""The feature store: what the frozen backbone made of each image and view, computed once.

A store is a folder named by the digest of what its numbers depend on (``FeatureSpec``). Its rows are keyed by content
hash, crop and view, and are only ever appended: first the numbers, then the keys. A row counts once its key is written,
so an interrupted extraction resumes from the first missing key. One process writes at a time, the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.files import replacing
from mpfm_kedro.provenance import code_digest, library_versions

logger = logging.getLogger(__name__)
# What decodes, crops, augments, resizes and extracts, with all that these modules import.
EXTRACTION_CODE = ("mpfm_kedro.backbones.extraction", "mpfm_kedro.images.decoding")
EXTRACTION_LIBRARIES = ("numpy", "pillow", "torch", "torchvision")
KEY = ["content_hash", "crop", "view"]


def extraction_code(backbone: str = EXTRACTION_CODE[0]) -> str:
    """Digest of the code that decides the numbers; ``backbone`` is the module of the backbone's class."""
    return code_digest(*dict.fromkeys([*EXTRACTION_CODE, backbone]))


def extraction_libraries(more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The libraries that decide the numbers, with their versions; ``more`` are those of one backbone alone."""
    versions = library_versions()
    own = [f"{name} {versions[name]}" for name in EXTRACTION_LIBRARIES]
    return (*own, *(f"{name} {version(name)}" for name in more))


@dataclass(frozen=True)
class FeatureSpec:
    """Everything besides the pixels that decides the numbers in a store, and their shapes.

    Device, batch and threads are no part of it: they decide the rounding only.
    """

    backbone: str
    weights_digest: str
    image_size: int
    layers: tuple[str, ...]
    map_layers: tuple[str, ...]
    statistics: tuple[str, ...]
    pooled_size: int
    map_shape: tuple[int, int, int]
    precision: str = "fp32"
    code: str = field(default_factory=extraction_code)
    libraries: tuple[str, ...] = field(default_factory=extraction_libraries)

    @property
    def digest(self) -> str:
        """Names the store."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def row_bytes(self) -> int:
        """Disk that one row takes: pooled statistics in fp32, the map in fp16."""
        return 4 * self.pooled_size + 2 * int(np.prod(self.map_shape))


def row_keys(views: pd.DataFrame) -> pd.Series:
    """The key of each view's row."""
    return views["content_hash"] + "|" + views["crop"] + "|" + views["view"]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The only process that writes to the store in ``folder``; waits until another one has finished.

    The lock is beside the folder: it outlives the store when that is deleted.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f".{folder.name}.lock").open("w")
    except OSError as error:
        raise InputError(f"Cannot write to the feature store {folder}: {error.strerror}") from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("Waiting for another process that writes to the feature store %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class StoreFolder:
    """One store on disk."""

    folder: Path
    spec: FeatureSpec

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row number of each key."""
        return {key: row for row, key in enumerate(self.keys())}

    def keys(self) -> list[str]:
        """Keys of the complete rows; a half-written last line, or a row whose numbers were lost, does not count."""
        file = self.folder / "keys.txt"
        if not file.is_file():
            return []
        rows = min((self.folder / name).stat().st_size // size for name, size in self.row_sizes.items())
        return file.read_text().split("\n")[:-1][:rows]

    @property
    def row_sizes(self) -> dict[str, int]:
        """Bytes of one row in each file of numbers."""
        return {"pooled.f32": 4 * self.spec.pooled_size, "maps.f16": 2 * int(np.prod(self.spec.map_shape))}

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Keys that are not in the store yet, in order, each once."""
        present = set(self.keys())
        return [key for key in dict.fromkeys(keys) if key not in present]

    @cached_property
    def pooled(self) -> np.ndarray:
        """Pooled statistics (rows, pooled_size), fp32, memory-mapped."""
        return np.memmap(self.folder / "pooled.f32", np.float32, "r", shape=(len(self.row_of), self.spec.pooled_size))

    @cached_property
    def maps(self) -> np.ndarray:
        """Feature maps F (rows, C, H', W'), fp16, memory-mapped."""
        return np.memmap(self.folder / "maps.f16", np.float16, "r", shape=(len(self.row_of), *self.spec.map_shape))

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files itself.
        return {"folder": self.folder, "spec": self.spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @contextmanager
    def writing(self) -> Iterator[StoreWriter]:
        """The store opened for appending, by one process at a time; which rows are missing is asked inside of it."""
        with _alone(self.folder):
            with replacing(self.folder / "store.json") as partial:
                partial.write_text(json.dumps(asdict(self.spec), indent=2))
            writer = StoreWriter(self)
            try:
                yield writer
            finally:
                writer.close()


class StoreWriter:
    """Appends rows; what an interrupted writer wrote without a key is removed first."""

    def __init__(self, store: StoreFolder) -> None:
        written = store.keys()
        sizes = {name: len(written) * size for name, size in store.row_sizes.items()}
        sizes["keys.txt"] = sum(len(key.encode()) + 1 for key in written)
        self._files = []
        for name, size in sizes.items():
            file = (store.folder / name).open("ab")
            file.truncate(size)
            self._files.append(file)

    def append(self, keys: list[str], pooled: np.ndarray, maps: np.ndarray) -> None:
        """Write a batch: numbers first, then the keys that make them count."""
        contents: list[np.ndarray] = [np.ascontiguousarray(pooled, np.float32), np.ascontiguousarray(maps, np.float16)]
        contents.append(np.frombuffer("".join(f"{key}\n" for key in keys).encode(), np.uint8))
        for file, content in zip(self._files, contents, strict=True):
            try:
                file.write(content.tobytes())
                file.flush()
            except OSError as error:
                raise InputError(f"Cannot write features to {file.name}: {error.strerror}") from error

    def close(self) -> None:
        """Put everything on disk; rows that could not be written have no key and do not count."""
        for file in self._files:
            with suppress(OSError):
                os.fsync(file.fileno())
            with suppress(OSError):
                file.close()


@dataclass(frozen=True)
class FeatureStore:
    """All stores of the project, one folder each."""

    root: Path

    def open(self, spec: FeatureSpec) -> StoreFolder:
        """The store for this specification, which need not exist yet."""
        return StoreFolder(self.root / spec.digest, spec)

    def check_room(self, spec: FeatureSpec, rows: int) -> int:
        """Bytes that ``rows`` more rows take; too little free disk is an error before any work."""
        self.root.mkdir(parents=True, exist_ok=True)
        need, free = rows * spec.row_bytes, shutil.disk_usage(self.root).free
        if need > free:
            raise InputError(f"{self.root} needs {need / 1e9:.1f} GB for features, {free / 1e9:.1f} GB are free")
        return need

    def overview(self) -> pd.DataFrame:
        """One row per store: what it holds and how much disk it takes."""
        rows = []
        for file in sorted(self.root.glob("*/store.json")):
            spec = json.loads(file.read_text())
            size = sum(part.stat().st_size for part in file.parent.iterdir())
            lines = (file.parent / "keys.txt").read_bytes().count(b"\n")
            rows.append(
                {"store": file.parent.name, "backbone": spec["backbone"], "image_size": spec["image_size"]}
                | {"rows": lines, "megabytes": round(size / 1e6)}
            )
        return pd.DataFrame(rows, columns=["store", "backbone", "image_size", "rows", "megabytes"])

    def free(self, name: str) -> None:
        """Delete one store."""
        if name not in set(self.overview()["store"]):
            raise InputError(
                f"No feature store '{name}' in {self.root}; there are: {', '.join(self.overview()['store'])}"
            )
        with _alone(self.root / name):
            shutil.rmtree(self.root / name)
