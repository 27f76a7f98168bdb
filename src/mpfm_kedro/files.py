"""Files that are there whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpfm_kedro.errors import InputError

CURRENT_FOLDER, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; it takes the name of ``path`` when all went well.

    Who may read it is decided by the umask, also where a library writes files for their owner alone (safetensors).
    """
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        make_readable(partial)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # the folder may not exist
            partial.unlink()


def replace_folder(new: Path, folder: Path) -> None:
    """Put a complete folder in the place of another one, which is deleted; there is a whole folder at any time.

    Where the system cannot exchange two folders (Linux can), there is none for a moment.
    """
    if not folder.exists():
        new.replace(folder)
    elif not _exchange(new, folder):
        old = folder.with_name(f".old.{os.getpid()}.{folder.name}")
        folder.replace(old)
        new.replace(folder)
        new = old
    shutil.rmtree(new, ignore_errors=True)


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
