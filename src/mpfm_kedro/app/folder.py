"""The one folder of this machine whose images the page may show; nothing outside of it can be named."""

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mpfm_kedro.app.session import MAX_BYTES, MAX_IMAGES
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.finding import escape_undecodable, files_below, is_image
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES


@dataclass(frozen=True)
class ImageFolder:
    """A folder that was named at start, and all that is below it. Links that lead out of it are refused."""

    root: Path

    def __post_init__(self) -> None:
        if not os.path.isdir(self.root):  # noqa: PTH112, Path.is_dir raises where a name is too long
            raise InputError(f"--images {self.root} is not a folder")

    def folders(self) -> list[str]:
        """Names of the folders below, as many as fit on a page, for a list to choose from."""
        found = []
        for folder, names, _ in os.walk(self.root):
            names[:] = sorted(name for name in names if not name.startswith(".") and _is_text(name))
            found.append(Path(folder).relative_to(self.root).as_posix())
            if len(found) == MAX_IMAGES:
                break
        return found

    def images(self, name: str) -> list[str]:
        """Names of the images in a folder and its subfolders; one more than the page takes at most."""
        inside, root = self._inside(name), self.root.resolve()
        if not inside.is_dir():
            raise InputError(f"'{name}' is not a folder below the one that was named at start")
        files = files_below(inside, follow_links=False)
        paths = (file.relative_to(root).as_posix() for file in files if is_image(file.name))
        names = list(islice(filter(_is_text, paths), MAX_IMAGES + 1))
        if not names:
            raise InputError(f"'{name}' has no image; images end in {' '.join(sorted(IMAGE_SUFFIXES))}")
        return names

    def read(self, name: str) -> bytes:
        """The content of an image; at most one byte more than is allowed."""
        file = self._inside(name)
        if not (file.is_file() and is_image(file.name)):
            raise InputError(f"'{name}' is not an image below the folder that was named at start")
        try:
            with file.open("rb") as content:
                return content.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"'{name}' cannot be read: {error.strerror}") from error

    def _inside(self, name: str) -> Path:
        try:
            path = (self.root / name).resolve(strict=True)
            path.relative_to(self.root.resolve())
        except (OSError, ValueError, RuntimeError) as error:  # missing, outside, a zero byte, a circle of links
            raise InputError(f"'{name}' is not below the folder that was named at start") from error
        return path


def _is_text(name: str) -> bool:
    return escape_undecodable(name) == name
