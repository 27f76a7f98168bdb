"""Files that are there whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpfm_kedro.errors import InputError


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


def make_readable(file: Path) -> None:
    """Let the umask decide who may read a file that a library wrote for its owner alone."""
    if file.stat().st_mode & 0o077 == 0:
        file.chmod(0o666 & ~_umask())


def _umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
