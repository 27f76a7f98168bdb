"""The files that a user means: one, all of a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES


def find_images(images: str) -> list[Path]:
    """The image files that a file, a folder (with all folders in it) or a glob pattern names, sorted."""
    path = Path(images)
    if path.is_dir():
        found = list(_below(path))
    elif path.is_file():
        return [path]
    else:
        matches = (Path(name) for name in glob.iglob(images, recursive=True))  # noqa: PTH207, patterns may be absolute
        found = [match for match in matches if match.is_file() and is_image(match.name)]
    if not found:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        kind = "has no image" if path.is_dir() else "is no file or folder, and no pattern that matches an image"
        raise InputError(f"Parameter 'images' = '{images}' {kind}; images end in {suffixes}")
    return sorted(found)


def _below(root: Path) -> Iterator[Path]:
    """The images of a folder and of all visible folders in it; links are followed, and no folder is read twice."""
    seen: set[Path] = set()
    for folder, names, files in os.walk(root, followlinks=True):
        here = Path(folder).resolve()
        names[:] = [name for name in names if not name.startswith(".") and here not in seen]
        if here not in seen:
            yield from (Path(folder) / name for name in files if is_image(name))
        seen.add(here)


def is_image(name: str) -> bool:
    """Whether a file is an image, by its name."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")


def as_text(name: str) -> str:
    """A file name with all bytes that are no text written out, such as an escape of Python."""
    return name.encode("utf-8", "backslashreplace").decode()
