"""The feature store: what the frozen backbone made of each image and view, computed once.

A store is a folder named by the digest of what its numbers depend on (``FeatureSpec``). It consists of immutable parts:
``00007.pooled.npy`` and ``00007.maps.npy`` with the numbers, then ``00007.keys.txt`` with one key (content hash, crop
and view) per row. A part counts once its keys are written, so that an interruption loses at most the part under way.
"""

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from mpfm_kedro.atomic import first_line, format_bytes, free_bytes, replacing
from mpfm_kedro.errors import InputError
from mpfm_kedro.images import decoding, views

logger = logging.getLogger(__name__)
EXTRACTION_LIBRARIES = ("numpy", "pillow", "torch", "torchvision")
PADDED = ", proportions kept"
KEY = ["content_hash", "crop", "view"]
SPEC, POOLED, MAPS, KEYS = "store.json", ".pooled.npy", ".maps.npy", ".keys.txt"
PARTS = f"[!.]*{KEYS}"  # without what a killed process has begun to write
PART_BYTES, PART_SECONDS = 64 << 20, 2  # batches are written as one part when they are so large, or so old


def extraction_version(backbone: str = "Backbone 1", keep_proportions: bool = False) -> str:
    """Versions of what decodes and augments images, and of the backbone's class; whether images are padded."""
    return f"decoding {decoding.VERSION}, views {views.VERSION}, {backbone}" + PADDED * keep_proportions


def extraction_libraries(more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The libraries that decide the numbers, with their versions; ``more`` are those of one backbone alone."""
    return tuple(f"{name} {version(name)}" for name in (*EXTRACTION_LIBRARIES, *more))


@dataclass(frozen=True)
class FeatureSpec:
    """Everything besides the pixels that decides the numbers in a store, and their shapes.

    Device, batch and threads are not part of it: they decide the rounding only.
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
    version: str = field(default_factory=extraction_version)
    libraries: tuple[str, ...] = field(default_factory=extraction_libraries)

    @property
    def keep_proportions(self) -> bool:
        """Whether images are padded to squares, not squeezed."""
        return self.version.endswith(PADDED)

    @property
    def digest(self) -> str:
        """Names the store."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def formats(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape of a row and type of its values in each kind of file."""
        return {POOLED: ((self.pooled_size,), np.dtype("f4")), MAPS: (tuple(self.map_shape), np.dtype("f2"))}

    @property
    def row_bytes(self) -> int:
        """Disk that one row takes."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.formats.values())


def row_keys(views: Any) -> Any:
    """The key of each view's row, of a table of views or of one of them."""
    return views["content_hash"] + "|" + views["crop"] + "|" + views["view"]


def read_keys(file: Path) -> list[str]:
    """The keys of a part; a damaged byte is not text, and stays nevertheless."""
    return file.read_bytes().decode("utf-8", "surrogateescape").split("\n")[:-1]


class Rows(NamedTuple):
    """Keys, pooled statistics (n, d) in fp32 and maps F (n, C, H', W') in fp16 of some views."""

    keys: list[str]
    pooled: np.ndarray
    maps: np.ndarray

    @classmethod
    def join(cls, batches: Iterable[Self]) -> Self:
        """The rows of several batches, of which there is at least one."""
        keys, pooled, maps = zip(*batches, strict=True)
        return cls([key for some in keys for key in some], np.concatenate(pooled), np.concatenate(maps))


class StoredRows:
    """The rows of several memory-mapped arrays (n, *shape), read like one array."""

    def __init__(self, parts: Iterable[np.ndarray], shape: tuple[int, ...], dtype: np.dtype) -> None:
        # one view per row: a gather is then one np.concatenate, as quick as that of a single array
        self._rows = [row for part in parts for row in np.asarray(part).reshape(len(part), math.prod(shape))]
        self.shape: tuple[Any, ...] = (len(self._rows), *shape)
        self.dtype, self.itemsize = dtype, dtype.itemsize

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        if np.size(index) and not len(self):
            raise InputError("Features are missing: their store was moved or deleted; start again")
        numbers = np.arange(len(self))[index]
        rows = [self._rows[number] for number in np.atleast_1d(numbers).tolist()]
        return np.concatenate([np.empty(0, self.dtype), *rows]).reshape(*numbers.shape, *self.shape[1:])


class StoreWriter:
    """Appends parts; what an interrupted writer wrote without keys is deleted first."""

    def __init__(self, folder: Path, spec: FeatureSpec) -> None:
        self._folder, self._row_bytes = folder, spec.row_bytes
        self._batches: list[Rows] = []
        parts = {file.name.removesuffix(KEYS) for file in folder.glob(PARTS)}
        for file in folder.iterdir():
            if file.name != SPEC and file.name.partition(".")[0] not in parts:
                file.unlink()
        self._next = max((int(part) + 1 for part in parts), default=0)
        self._written = 0.0  # the first batch is written at once: a full disk shows early

    def append(self, keys: list[str], pooled: np.ndarray, maps: np.ndarray) -> None:
        """Add a batch; it is written together with others, at the latest when the store is closed."""
        self._batches.append(Rows(keys, pooled, maps))
        size = self._row_bytes * sum(len(batch.keys) for batch in self._batches)
        if size >= PART_BYTES or time.monotonic() - self._written >= PART_SECONDS:
            self.write_part()

    def write_part(self) -> None:
        """Write the batches so far as one part: the numbers first, then the keys that make them count."""
        batches, self._batches = self._batches, []
        if not any(batch.keys for batch in batches):
            return
        rows, part = Rows.join(batches), f"{self._next:05d}"
        self._next += 1
        for name, values in ((POOLED, rows.pooled.astype("f4")), (MAPS, rows.maps.astype("f2"))):
            with replacing(self._folder / f"{part}{name}", values.nbytes) as partial:
                np.save(partial, values)
        with replacing(self._folder / f"{part}{KEYS}") as partial:
            partial.write_bytes("".join(f"{key}\n" for key in rows.keys).encode("utf-8", "surrogateescape"))
        self._written = time.monotonic()


@dataclass(frozen=True)
class StoreFolder:
    """One store on disk, as it was when its rows were first asked for."""

    folder: Path
    spec: FeatureSpec

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row number of each key."""
        return {key: row for row, key in enumerate(self.keys())}

    @cached_property
    def pooled(self) -> StoredRows:
        """Pooled statistics (rows, pooled_size), fp32, memory-mapped."""
        return StoredRows([part.pooled for part in self._parts], *self.spec.formats[POOLED])

    @cached_property
    def maps(self) -> StoredRows:
        """Feature maps F (rows, C, H', W'), fp16, memory-mapped."""
        return StoredRows([part.maps for part in self._parts], *self.spec.formats[MAPS])

    def keys(self) -> list[str]:
        """The keys of all rows, each of which is there once."""
        keys = [key for part in self._parts for key in part.keys]
        if len(set(keys)) < len(keys):
            raise InputError(f"{self.folder} has a key twice: it is damaged; kedro store free {self.folder.name}")
        return keys

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Keys whose rows are not in the store at this moment, in order, each once."""
        present = set(StoreFolder(self.folder, self.spec).keys())
        return [key for key in dict.fromkeys(keys) if key not in present]

    @cached_property
    def _parts(self) -> list[Rows]:
        return [self._read_part(file) for file in sorted(self.folder.glob(PARTS))]

    def _read_part(self, keys_file: Path) -> Rows:
        keys, arrays = read_keys(keys_file), []
        for name, (shape, dtype) in self.spec.formats.items():
            file = keys_file.with_name(keys_file.name.replace(KEYS, name))
            try:
                array = np.load(file, mmap_mode="r", allow_pickle=False)
                if array.dtype != dtype or array.shape != (len(keys), *shape):
                    raise ValueError(f"{array.dtype} {array.shape} for {len(keys)} keys")
            except Exception as error:  # numpy's parser lets any error through
                raise InputError(
                    f"{file} does not fit its keys ({first_line(error)}); delete {keys_file} and start again: "
                    "kedro run extracts its images again"
                ) from error
            arrays.append(array)
        return Rows(keys, *arrays)

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files itself.
        return {"folder": self.folder, "spec": self.spec}

    @contextmanager
    def writing(self) -> Iterator[StoreWriter]:
        """The store opened for appending, by one process at a time; which rows are missing is asked inside of it."""
        with alone(self.folder):
            with replacing(self.folder / SPEC) as partial:
                partial.write_text(json.dumps(asdict(self.spec), indent=2))
            writer = StoreWriter(self.folder, self.spec)
            try:
                yield writer
            finally:
                writer.write_part()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The only process that writes to the store in ``folder``; waits until another one has finished.

    The lock is beside the folder: it outlives the store when that is deleted.
    """
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            logger.info("Waiting for another process that writes to the feature store %s", folder)
            lock.acquire()
    except OSError as error:
        raise InputError(f"Cannot write to the feature store {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class FeatureStore:
    """All stores of the project, one folder each."""

    root: Path

    def open(self, spec: FeatureSpec) -> StoreFolder:
        """The store for this specification, which need not exist yet."""
        return StoreFolder(self.root / spec.digest, spec)

    def check_room(self, spec: FeatureSpec, rows: int) -> int:
        """Bytes that ``rows`` more rows take; too little free disk is an error before any work."""
        need, free = rows * spec.row_bytes, free_bytes(self.root)
        if need > free:
            raise InputError(f"{self.root} needs {format_bytes(need)} for features, {format_bytes(free)} are free")
        return need

    def overview(self) -> pd.DataFrame:
        """One row per store: what it holds and how much disk it takes."""
        rows = []
        for file in sorted(self.root.glob(f"*/{SPEC}")):
            try:
                spec = json.loads(file.read_text())
                named = {"backbone": spec["backbone"], "image_size": spec["image_size"]}
            except (ValueError, KeyError, TypeError):  # damaged; the next extraction writes it again
                named = {"backbone": "unknown", "image_size": 0}
            size = sum(part.stat().st_size for part in file.parent.iterdir())
            lines = sum(len(read_keys(keys)) for keys in file.parent.glob(PARTS))
            rows.append({"store": file.parent.name} | named | {"rows": lines, "megabytes": round(size / 1e6)})
        return pd.DataFrame(rows, columns=["store", "backbone", "image_size", "rows", "megabytes"])

    def free(self, name: str) -> None:
        """Delete one store."""
        if name not in (names := self.overview()["store"].tolist()):
            raise InputError(f"No feature store '{name}' in {self.root}; there are: {', '.join(names)}")
        with alone(self.root / name):
            shutil.rmtree(self.root / name)
