"""Files that are there whole or not at all, and that show when they were damaged later.

A file is written under a temporary name, put on the disk, then renamed. A file can carry a checksum of itself: whoever
writes it puts ``BLANK`` into its header once, and ``seal`` replaces that by the digest of the whole file.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from mpfm_kedro.errors import InputError

if TYPE_CHECKING:  # slow to import
    import pandas as pd

MARK = b"mpfm-checksum:"
DIGITS = 64
BLANK = MARK.decode() + "0" * DIGITS
AGAIN = "a whole kedro run (without --namespaces) makes it again"
OLD = ".old."  # begins the name of a folder that is being replaced
UNITS = ("B", "kB", "MB", "GB", "TB")
CURRENT_FOLDER, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


@contextmanager
def replacing(path: Path, need: int = 0) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; it takes the name of ``path`` when all went well.

    Who may read it is decided by the umask, also where a library writes files for their owner alone (safetensors).

    Args:
        path: to write.
        need: bytes that it will have, where they are known; a full disk is reported with them.
    """
    with _explained(path, need) as partial:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        make_readable(partial)
        put_on_disk(partial)
        partial.replace(path)
        put_on_disk(path.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder`` for files; it takes the place of ``folder`` when all went well.

    There is a whole folder at any time. Where the system cannot exchange two folders (Linux can), there is none for a
    moment, and ``recover_folder`` mends what a process left that was killed in it.
    """
    old = folder.with_name(f"{OLD}{folder.name}")
    with _explained(folder) as partial:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.iterdir():
            make_readable(file)
            put_on_disk(file)
        recover_folder(folder)
        if not folder.exists():
            partial.replace(folder)
        elif not _exchange(partial, folder):
            shutil.rmtree(old, ignore_errors=True)
            folder.replace(old)
            partial.replace(folder)
        put_on_disk(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Bring back the earlier folder where a process was killed before the new one had its name."""
    old = folder.with_name(f"{OLD}{folder.name}")
    if old.is_dir() and not folder.exists():
        old.replace(folder)


@contextmanager
def _explained(path: Path, need: int = 0) -> Iterator[Path]:
    """A temporary name beside ``path``; what remains there is deleted, and an error of the system named."""
    partial = path.with_name(f".{os.getpid()}.{token_hex(4)}.{path.name}")
    try:
        yield partial
    except Exception as error:
        system_error = find_system_error(error)
        if system_error is None:
            raise
        need = max(need, _size(partial))
        _delete(partial)  # before the free space is asked for
        raise InputError(f"Cannot write {path}: {explain(system_error, path.parent, need)}") from error
    finally:
        _delete(partial)


def find_system_error(error: BaseException | None) -> OSError | None:
    """The error of the operating system that another error was caused by, if any.

    Libraries in Rust, such as safetensors, give it as text alone.
    """
    while error is not None:
        if isinstance(error, InputError):
            return None  # explained already
        if isinstance(error, OSError):
            return error
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            return OSError(int(number[1]), os.strerror(int(number[1])))
        error = error.__cause__
    return None


def explain(error: OSError, folder: Path, need: int = 0) -> str:
    """What the operating system refused; of a full disk also how many bytes were needed and are free."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return reason
    return f"{reason}; it needs {in_units(need)} or more, {in_units(free_bytes(folder))} are free"


def free_bytes(folder: Path) -> int:
    """Free disk space where a folder is, or will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def in_units(size: float) -> str:
    """A number of bytes with three digits, such as 12.3 MB."""
    power = 0
    while round(size, 1) >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.{0 if power == 0 or size >= 100 else 1}f} {UNITS[power]}"


def seal(file: Path) -> None:
    """Replace the ``BLANK`` in a file by the checksum of the file."""
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(content.index(BLANK.encode()) + len(MARK))
        opened.write(hashlib.sha256(content).hexdigest().encode())


def is_intact(file: Path) -> bool:
    """Whether a file has the checksum that it carries; one that carries none, as older ones do, counts as intact.

    A file that did not change since it was found intact is not read again.
    """
    return _state(file) is not False


def carries_checksum(file: Path) -> bool:
    """Whether a file has a checksum, and has the one that it carries."""
    return _state(file) is True


def _state(file: Path) -> bool | None:
    """Whether a file has the checksum that it carries; None where it carries none."""
    found = file.stat()
    return _read_state(file, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=10_000)
def _read_state(file: Path, number: int, size: int, modified: int) -> bool | None:
    content = file.read_bytes()
    place = content.find(MARK)
    if place < 0:
        return None
    start, end = place + len(MARK), place + len(BLANK)
    digest = hashlib.sha256(memoryview(content)[:place])
    digest.update(BLANK.encode())
    digest.update(memoryview(content)[end:])
    return digest.hexdigest().encode() == content[start:end]


def save_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet in one step, with a checksum of the file in its footer."""
    sealed = table.copy(deep=False)
    sealed.attrs = {**table.attrs, "checksum": BLANK}
    with replacing(path) as partial:
        sealed.to_parquet(partial)
        seal(partial)


def load_table(path: Path, advice: str = AGAIN) -> pd.DataFrame:
    """A table in Parquet; a damaged file is an error that names it and gives the advice."""
    import pandas as pd

    try:
        if not is_intact(path):
            raise ValueError("it has not the checksum that it names")
        table = pd.read_parquet(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow answers a damaged file with exceptions of a dozen types
        raise InputError(f"{path} is damaged ({first_line(error)}); {advice}") from error
    table.attrs.pop("checksum", None)
    return table


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return str(error).partition("\n")[0] or type(error).__name__


def _exchange(first: Path, second: Path) -> bool:
    """Give each of two paths the name of the other in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    paths = CURRENT_FOLDER, os.fsencode(first), CURRENT_FOLDER, os.fsencode(second)
    return rename is not None and rename(*paths, EXCHANGE) == 0


def make_readable(file: Path) -> None:
    """Let the umask decide who may read a file that a library wrote for its owner alone."""
    if file.stat().st_mode & 0o077 == 0:
        file.chmod(0o666 & ~_umask())


def _umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def put_on_disk(path: Path) -> None:
    """See that a file or folder is on the disk, and not in memory alone: it outlasts a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # not every file system does this to a folder
            raise
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    try:
        return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
    except OSError:
        return 0


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
