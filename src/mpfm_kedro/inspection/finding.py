"""The files that a user means: one, all of a folder, or those that a pattern matches."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES


def find_images(images: str) -> list[Path]:
    """The image files that a file, a folder (with all folders in it) or a glob pattern names, sorted."""
    path = Path(images)
    if path.is_file():
        return [path]
    matches = files_below(path, follow_links=True) if path.is_dir() else map(Path, glob.iglob(images, recursive=True))  # noqa: PTH207, absolute
    found = [match for match in matches if is_image(match.name) and not match.is_dir()]
    if not found:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        problem = "has no image" if path.is_dir() else "is not a file, a folder, or a pattern that matches an image"
        raise InputError(f"Parameter 'images' = '{images}' {problem}; images end in {suffixes}")
    return sorted(found)


def files_below(root: Path, follow_links: bool) -> Iterator[Path]:
    """The files of a folder, then those of each visible folder in it, by their names; no folder is read twice."""
    seen: set[Path] = set()
    for folder, names, files in os.walk(root, followlinks=follow_links):
        here = Path(folder).resolve()
        names[:] = sorted(name for name in names if not name.startswith(".") and here not in seen)
        if here not in seen:
            yield from (Path(folder) / name for name in sorted(files))
        seen.add(here)


def is_image(name: str) -> bool:
    """Whether a file is an image, by its name."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")


def escape_undecodable(name: str) -> str:
    """A file name with all bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()
