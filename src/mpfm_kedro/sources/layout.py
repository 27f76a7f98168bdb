"""Folders of a download: what may wrap them, what must and must not be in them, and their images as samples."""

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.masks import check_mask_size
from mpfm_kedro.sources.samples import sample

logger = logging.getLogger(__name__)
Row = dict[str, Any]
Rows = Iterator[Row]
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".npy"}


def visible(folder: Path) -> list[Path]:
    """What is in a folder, sorted; hidden files and what archivers leave behind are skipped."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.name != "__MACOSX")


def image_files(folder: Path) -> list[Path]:
    """The images directly in a folder, whatever the case of their suffix."""
    return [file for file in visible(folder) if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()]


def subfolders(folder: Path) -> list[Path]:
    """The folders directly in a folder."""
    return [entry for entry in visible(folder) if entry.is_dir()]


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


@contextmanager
def new_folder(folder: Path, action: str) -> Iterator[Path]:
    """A temporary path beside ``folder`` that takes its name when it is whole, unless another process was quicker."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            partial = Path(scratch, folder.name)
            yield partial
            partial.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise InputError(f"Cannot {action} {folder}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Layout:
    """The folder of one dataset, read as its publisher arranged it; errors and warnings name the dataset."""

    dataset: str
    title: str
    folder: Path

    def error(self, message: str) -> InputError:
        """To be raised."""
        return InputError(f"{self.title}: {message}")

    def warn(self, message: str, *values: object) -> None:
        """Log what was found and is not used."""
        logger.warning(f"%s: {message}", self.title, *values)

    def path(self, file: Path) -> str:
        """A file as the sample table names it."""
        return file.relative_to(self.folder).as_posix()

    def inner(self, *names: str, parent: Path | None = None) -> Path:
        """The folder of these names, each of which some archives repeat, below ``parent`` or the whole folder."""
        folder = parent or self.folder
        for name in names:
            folder = folder / name
            if not folder.is_dir():
                raise self.error(f"the folder {folder} is missing")
            while (folder / name).is_dir():
                folder = folder / name
        return folder

    def sample(self, image: Path, defect_class: str = "", mask: Path | None = None, /, **more: str) -> Row:
        """The row of an image, which is an anomaly if it has a class; a mask must have the size of its image."""
        if mask:
            check_mask_size(mask, image, self.title)
            more["mask_path"] = self.path(mask)
        return sample(self.dataset, self.path(image), int(bool(defect_class)), defect_class, **more)

    def samples(self, folder: Path, defect_class: str = "", **more: str) -> Rows:
        """The rows of all images of a folder, which must have some."""
        return (self.sample(image, defect_class, **more) for image in self.images(folder))

    def images(self, folder: Path) -> list[Path]:
        """The images directly in a folder that must be there and must not be empty; other files are reported."""
        folder = self.inner(folder.name, parent=folder.parent)
        images = self._images_among([entry for entry in visible(folder) if not entry.is_dir()], folder)
        if not images:
            raise self.error(f"no image directly in {folder}; expected are {' '.join(sorted(IMAGE_SUFFIXES))}")
        return images

    def refuse_others(self, folder: Path, allowed: Collection[str]) -> None:
        """Raise for an unknown folder: walked, it would be one more class; skipped, its images would be missing."""
        for other in subfolders(folder):
            if other.name not in allowed:
                raise self.error(f"unknown folder {other}; expected are {', '.join(sorted(allowed))}")

    def class_folders(self, folder: Path, classes: Collection[str]) -> dict[str, Path]:
        """The folder of each class that is there.

        A missing class is reported and not an error yet: where the samples are counted, it is decided whether a
        partial copy will do.
        """
        self.refuse_others(folder, classes)
        there = {path.name: self.inner(path.name, parent=folder) for path in subfolders(folder)}
        for name in sorted(set(classes) - set(there)):
            self.warn("the folder %s is missing; its class is skipped", folder / name)
        return there

    def nested_images(self, folder: Path, above: Collection[Path] = ()) -> list[Path]:
        """The visible images of a folder and of all folders in it, sorted; other files are reported.

        Links are followed, but not to a folder ``above``, which would be walked again and again.
        """
        return self._images_among(list(self._walk(folder, above)), folder)

    def _images_among(self, files: list[Path], folder: Path) -> list[Path]:
        images = {file for file in files if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()}
        if others := [file for file in files if file not in images]:
            suffixes = [file.suffix.lower() or file.name for file in others]
            kinds = {"broken links" if suffix in IMAGE_SUFFIXES else suffix for suffix in suffixes}
            self.warn(
                "not read in %s: %d files (%s), e.g. %s", folder, len(others), ", ".join(sorted(kinds)), min(others)
            )
        return sorted(images)

    def _walk(self, folder: Path, above: Collection[Path]) -> Iterator[Path]:
        self._refuse_odd_name(folder)
        if (here := folder.resolve()) in above:
            self.warn("%s is a link to a folder that it is in, and is skipped", folder)
            return
        for entry in visible(folder):
            if entry.is_dir():
                if entry.suffix.lower() in IMAGE_SUFFIXES:
                    self.warn("%s is a folder, not an image; the images in it are used", entry)
                yield from self._walk(entry, [*above, here])
            else:
                self._refuse_odd_name(entry)
                yield entry

    def _refuse_odd_name(self, path: Path) -> None:
        """Raise for a name that no table can hold."""
        raw = os.fsencode(path.name)
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            parent = os.fsencode(path.parent).decode("utf-8", "replace")
            raise self.error(f"the name {raw!r} in {parent} is not UTF-8; rename it") from error
