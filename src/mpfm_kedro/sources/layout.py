"""Folders of a download: what may wrap them, and what must and must not be in them."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import Path

from mpfm_kedro.errors import InputError

logger = logging.getLogger(__name__)
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".npy"}


def image_files(folder: Path) -> list[Path]:
    """The visible images directly in a folder, sorted, whatever the case of their suffix."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def subfolders(folder: Path) -> list[Path]:
    """The visible folders directly in a folder, sorted; what archivers leave behind is skipped."""
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and entry.name != "__MACOSX"
    )


def find_folder(folder: Path, title: str, expected: Sequence[str], obtain: str) -> Path:
    """The folder that holds any of the ``expected`` names (patterns), below single folders that wrap it.

    Archives often unpack into a folder of their own, once or twice, so a user's copy is rarely exactly where
    the layout says.
    """
    if not folder.is_dir():
        raise InputError(
            f"{title}: the folder {folder} is missing; it should hold {', '.join(expected)}. "
            f"The files come from {obtain}"
        )
    inner = folder
    while not any(fnmatch(entry.name, pattern) for entry in inner.iterdir() for pattern in expected):
        inside = subfolders(inner)
        if len(inside) != 1:
            raise InputError(f"{title}: {inner} should hold {', '.join(expected)}, and holds none of it")
        inner = inside[0]
    return inner


def required_folder(folder: Path, title: str) -> Path:
    """``folder``, or the folder of the same name inside it, as some archives unpack."""
    if not folder.is_dir():
        raise InputError(f"{title}: the folder {folder} is missing")
    while (folder / folder.name).is_dir():
        folder = folder / folder.name
    return folder


def required_images(folder: Path, title: str) -> list[Path]:
    """The images of a folder that must be there and must not be empty; files of other kinds are reported."""
    folder = required_folder(folder, title)
    files = image_files(folder)
    others = {file.name for file in folder.iterdir() if file.is_file()} - {file.name for file in files}
    if visible := sorted(name for name in others if not name.startswith(".")):
        logger.warning("%s: %d files in %s are no images, e.g. %s", title, len(visible), folder, visible[0])
    if not files:
        raise InputError(f"{title}: no image directly in {folder}; expected are {' '.join(sorted(IMAGE_SUFFIXES))}")
    return files


def nested_images(folder: Path, title: str, above: Collection[Path] = ()) -> list[Path]:
    """The visible images of a folder and of all folders in it, sorted; what else is in there is reported.

    Links are followed, but not to a folder ``above``, which would be walked again and again.
    """
    found: list[Path] = []
    others: list[Path] = []
    _walk(folder, title, above, found, others)
    if others:
        kinds = ", ".join(sorted({_kind(file) for file in others}))
        logger.warning("%s: not read in %s: %d files (%s), e.g. %s", title, folder, len(others), kinds, min(others))
    return sorted(found)


def _kind(file: Path) -> str:
    """Why a file is not read: its suffix or name, or that it leads nowhere."""
    suffix = file.suffix.lower()
    return "broken links" if suffix in IMAGE_SUFFIXES else suffix or file.name


def _walk(folder: Path, title: str, above: Collection[Path], found: list[Path], others: list[Path]) -> None:
    _refuse_odd_name(folder, title)
    if (here := folder.resolve()) in above:
        logger.warning("%s: %s is a link to a folder that it is in, and is skipped", title, folder)
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        named_as_image = entry.suffix.lower() in IMAGE_SUFFIXES
        if entry.is_dir():
            if named_as_image:
                logger.warning("%s: %s is a folder, not an image; the images in it are used", title, entry)
            _walk(entry, title, [*above, here], found, others)
            continue
        _refuse_odd_name(entry, title)
        (found if named_as_image and entry.is_file() else others).append(entry)


def _refuse_odd_name(path: Path, title: str) -> None:
    """Raise for a name that no table can hold."""
    raw = os.fsencode(path.name)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        parent = os.fsencode(path.parent).decode("utf-8", "replace")
        raise InputError(f"{title}: the name {raw!r} in {parent} is not UTF-8; rename it") from error


def refuse_others(folder: Path, allowed: Collection[str], title: str) -> None:
    """Raise for an unknown folder: walked, it would be one more class; skipped, its images would be missing."""
    for other in subfolders(folder):
        if other.name not in allowed:
            raise InputError(f"{title}: unknown folder {other}; expected are {', '.join(sorted(allowed))}")


def class_folders(folder: Path, classes: Collection[str], title: str) -> dict[str, Path]:
    """The folder of each class that is there.

    A class that is missing is reported here and no error yet: whether a partial copy will do is decided where
    the samples are counted.
    """
    refuse_others(folder, classes, title)
    there = {path.name: required_folder(path, title) for path in subfolders(folder)}
    for name in sorted(set(classes) - set(there)):
        logger.warning("%s: the folder %s is missing; its class is skipped", title, folder / name)
    return there
