"""Files that are there whole or not at all: written under a temporary name, put on the disk, then renamed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import pandas as pd
from pyarrow import parquet

from mpfm_kedro.errors import InputError

REBUILD_HINT = "rerun the full pipeline (without --tags) to rebuild it"
UNITS = ("B", "kB", "MB", "GB", "TB")


@contextmanager
def replacing(path: Path, need: int = 0) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; it takes the name of ``path`` when all went well.

    ``need`` are the bytes that it will have, where they are known: a full disk is reported with them.
    """
    with _explained(path, need) as partial:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        fsync_path(partial)
        partial.replace(path)
        fsync_path(path.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder`` for files; it takes the place of ``folder`` when all went well.

    The earlier folder is renamed first: a process that is killed in between leaves it where ``readable_folder`` looks.
    """
    old = _former(folder)
    with _explained(folder) as partial:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.iterdir():
            fsync_path(file)
        if folder.exists():
            _delete(old)
            folder.replace(old)
        partial.replace(folder)
        fsync_path(folder.parent)
    _delete(old)


def readable_folder(folder: Path) -> Path:
    """A folder, or the earlier one where its replacement was interrupted."""
    there = os.path.exists(folder)  # noqa: PTH110, Path.exists raises where a name is too long
    return _former(folder) if not there and os.path.isdir(_former(folder)) else folder  # noqa: PTH112


def _former(folder: Path) -> Path:
    return folder.with_name(f".old.{folder.name}")


@contextmanager
def _explained(path: Path, need: int = 0) -> Iterator[Path]:
    """A temporary name beside ``path``; what remains there is deleted, and an error of the system named."""
    partial = path.with_name(f".{os.getpid()}.{token_hex(4)}.{path.name}")
    try:
        yield partial
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError | InputError):
            cause = cause.__cause__
        if not isinstance(cause, OSError):  # an InputError is explained already
            raise
        files = [file for file in (partial, *partial.glob("*")) if file.is_file()]
        need = max(need, sum(file.stat().st_size for file in files))
        _delete(partial)  # before the free space is asked for
        raise InputError(f"Cannot write {path}: {explain(cause, path.parent, need)}") from error
    finally:
        _delete(partial)


def _delete(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def explain(error: OSError, folder: Path, need: int = 0) -> str:
    """What the operating system refused; of a full disk also how many bytes were needed and are free."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return reason
    free = free_bytes(folder)
    needed = f"it needs {format_bytes(need)}" if need > free else "it needs more"
    return f"{reason}; {needed}, {format_bytes(free)} are free"


def free_bytes(folder: Path) -> int:
    """Free disk space where a folder is, or will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def format_bytes(size: float) -> str:
    """A number of bytes with three digits, such as 12.3 MB."""
    power = 0
    while round(size, 1) >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.{0 if power == 0 or size >= 100 else 1}f} {UNITS[power]}"


def save_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet in one step, with Parquet's own checksums of its pages."""
    with replacing(path) as partial:
        table.to_parquet(partial, write_page_checksum=True)


def load_table(path: Path, advice: str = REBUILD_HINT) -> pd.DataFrame:
    """A table in Parquet; a damaged file is an error that names it and gives the advice."""
    try:
        table = pd.read_parquet(path, page_checksum_verification=True)
        stored = parquet.read_metadata(path)  # no checksum covers it
        schema = stored.schema.to_arrow_schema()
        described = (schema.pandas_metadata or {}).get("columns", [])
        names = {column["name"] for column in described} or set(table)
        if len(table) != stored.num_rows or not names.intersection(schema.names).issuperset(table):
            raise ValueError("rows or columns are missing")
        return table
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow answers a damaged file with exceptions of a dozen types
        raise InputError(f"{path} is damaged ({first_line(error)}); {advice}") from error


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return str(error).partition("\n")[0] or type(error).__name__


def fsync_path(path: Path) -> None:
    """See that a file or folder is on the disk, and not in memory alone: it outlasts a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # not every file system does this to a folder
            raise
    finally:
        os.close(descriptor)
