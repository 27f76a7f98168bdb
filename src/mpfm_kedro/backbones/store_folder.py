"""One feature store on disk: rows of numbers with their keys and checksums, in one folder.

Rows are only ever appended: first the numbers, then their checksums, then the keys. A row counts once its key is
written, so an interrupted extraction resumes from the first missing key. A damaged row is appended again: of several
rows with one key the last one counts. One process writes at a time, the others wait.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpfm_kedro.backbones.checked_rows import CheckedRows, checksum
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import explain, replacing

if TYPE_CHECKING:
    from mpfm_kedro.backbones.store import FeatureSpec

logger = logging.getLogger(__name__)
POOLED, MAPS, CHECKSUMS, KEYS = "pooled.f32", "maps.f16", "checksums.u32", "keys.txt"
VERIFIED = "verified.json"  # which rows were damaged, and the state of the files when they were verified


def _line(key: str) -> bytes:
    """A key as the file of keys has it."""
    return f"{key}\n".encode("utf-8", "surrogateescape")


def _in_words(rows: list[int], keys: list[str]) -> str:
    more = f" and {len(rows) - 1} more rows" if len(rows) > 1 else ""
    return f"row {rows[0]} ({keys[rows[0]]!r}){more}"


def _refuse(file: Path, keys: list[str], rows: list[int]) -> None:
    """Rows of a file are damaged: an error that names them; the next start verifies all rows."""
    _forget_verified(file.parent)
    raise InputError(f"{file} is damaged in {_in_words(rows, keys)}; start again: kedro run extracts it again")


def _forget_verified(folder: Path) -> None:
    with suppress(OSError):
        (folder / VERIFIED).unlink()


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _modified(file: Path) -> int:
    return file.stat().st_mtime_ns if file.is_file() else 0


@contextmanager
def alone(folder: Path) -> Iterator[None]:
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
        if not (self.folder / KEYS).is_file():
            return []
        sizes = self.row_sizes | {CHECKSUMS: 4 * len(self.row_sizes)}
        rows = min(_size(self.folder / name) // size for name, size in sizes.items())
        # a damaged byte is no text, and must have its place nevertheless
        return (self.folder / KEYS).read_bytes().decode("utf-8", "surrogateescape").split("\n")[:-1][:rows]

    @property
    def row_sizes(self) -> dict[str, int]:
        """Bytes of one row in each file of numbers."""
        return {POOLED: 4 * self.spec.pooled_size, MAPS: 2 * int(np.prod(self.spec.map_shape))}

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Keys whose rows are not in the store yet, or are damaged, in order, each once."""
        present, damaged = self._rows(), self._damaged_rows()
        return [key for key in dict.fromkeys(keys) if key not in present or present[key] in damaged]

    def is_damaged(self) -> bool:
        """Whether some row is not as it was written; all are verified, whatever was known of them."""
        _forget_verified(self.folder)
        return bool(self._damaged_rows())

    @cached_property
    def pooled(self) -> np.ndarray:
        """Pooled statistics (rows, pooled_size), fp32, memory-mapped; each row is verified when it is first read."""
        return cast(np.ndarray, self._open(POOLED, self.keys()))

    @cached_property
    def maps(self) -> np.ndarray:
        """Feature maps F (rows, C, H', W'), fp16, memory-mapped; each row is verified when it is first read."""
        return cast(np.ndarray, self._open(MAPS, self.keys()))

    def _open(self, name: str, keys: list[str]) -> CheckedRows:
        kind, shape = {POOLED: (np.float32, (self.spec.pooled_size,)), MAPS: (np.float16, self.spec.map_shape)}[name]
        values = np.memmap(self.folder / name, kind, "r", shape=(len(keys), *shape))
        column = list(self.row_sizes).index(name)
        refuse = partial(_refuse, self.folder / name, keys)  # no method: the files are unmapped with the store
        return CheckedRows(self.folder / name, values, keys, self._checksums()[:, column], refuse)

    def _checksums(self) -> np.ndarray:
        """One checksum per row and file of numbers."""
        files = len(self.row_sizes)
        found = np.fromfile(self.folder / CHECKSUMS, np.uint32)
        return found[: len(found) // files * files].reshape(-1, files)

    def _rows(self) -> dict[str, int]:
        """Row number of each key, read anew."""
        return {key: row for row, key in enumerate(self.keys())}

    def _damaged_rows(self) -> set[int]:
        """Rows that are not as they were written; all are verified where a file has changed since it was done."""
        keys = self.keys()
        if not keys:
            return set()
        names = [*self.row_sizes, CHECKSUMS, KEYS]
        state = {name: [_size(self.folder / name), _modified(self.folder / name)] for name in names}
        try:
            known = json.loads((self.folder / VERIFIED).read_text())
            if known["files"] == state:
                return set(known["damaged"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # never verified
        rows = self._rows().values()
        found = {row for name in self.row_sizes for row in self._open(name, keys).damaged(rows)}
        if found:
            message = "%s is damaged in %s, to be extracted again"
            logger.warning(message, self.folder, _in_words(sorted(found), keys))
        with suppress(InputError), replacing(self.folder / VERIFIED) as partial:  # others may only read
            partial.write_text(json.dumps({"files": state, "damaged": sorted(found)}))
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files itself.
        return {"folder": self.folder, "spec": self.spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @contextmanager
    def writing(self) -> Iterator[StoreWriter]:
        """The store opened for appending, by one process at a time; which rows are missing is asked inside of it."""
        with alone(self.folder):
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
        sizes[CHECKSUMS] = len(written) * 4 * len(sizes)
        sizes[KEYS] = sum(len(_line(key)) for key in written)
        self._files = []
        for name, size in sizes.items():
            try:
                file = (store.folder / name).open("ab")
                self._files.append(file)
                file.truncate(size)
            except OSError as error:
                self.close()
                raise InputError(f"Cannot write features to {store.folder / name}: {error.strerror}") from error

    def append(self, keys: list[str], pooled: np.ndarray, maps: np.ndarray) -> None:
        """Write a batch: numbers first, then their checksums, then the keys that make them count."""
        numbers: list[np.ndarray] = [np.ascontiguousarray(pooled, np.float32), np.ascontiguousarray(maps, np.float16)]
        checksums = [[checksum(key, rows[i]) for rows in numbers] for i, key in enumerate(keys)]
        contents = [rows.tobytes() for rows in numbers]
        contents += [np.array(checksums, np.uint32).tobytes(), b"".join(map(_line, keys))]
        for file, content in zip(self._files, contents, strict=True):
            try:
                file.write(content)
                file.flush()
            except OSError as error:
                reason = explain(error, Path(file.name).parent, len(content))
                raise InputError(f"Cannot write features to {file.name}: {reason}") from error

    def close(self) -> None:
        """Put everything on disk; rows that could not be written have no key and do not count."""
        for file in self._files:
            with suppress(OSError):
                os.fsync(file.fileno())
            with suppress(OSError):
                file.close()
