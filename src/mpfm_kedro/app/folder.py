"""The one folder of this machine whose images the page may show; nothing outside of it can be named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mpfm_kedro.app.limits import MAX_BYTES, MAX_IMAGES
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.finding import as_text, is_image
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES


@dataclass(frozen=True)
class ImageFolder:
    """A folder that was named at start, and all that is below it. Links that lead out of it are refused."""

    root: Path

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise InputError(f"--images {self.root} is no folder")

    def folders(self) -> list[str]:
        """Names of the folders below, for a list to choose from; not more than fit on a page."""
        found = []
        for folder, names, _ in os.walk(self.root):
            names[:] = sorted(name for name in names if not name.startswith(".") and as_text(name) == name)
            found.append(Path(folder).relative_to(self.root).as_posix())
            if len(found) == MAX_IMAGES:
                break
        return found

    def images(self, name: str) -> list[str]:
        """Names of the images in a folder below and in its folders, sorted; one more than the page takes at most."""
        inside = self._inside(name)
        if not inside.is_dir():
            raise InputError(f"'{name}' is no folder below the one that was named at start")
        found: list[str] = []
        for folder, names, files in os.walk(inside):
            names.sort()
            own = (Path(folder, file).relative_to(self.root.resolve()) for file in sorted(files) if is_image(file))
            found += [file.as_posix() for file in own if as_text(str(file)) == str(file)]
            if len(found) > MAX_IMAGES:
                break
        if not found:
            raise InputError(f"'{name}' has no image; images end in {' '.join(sorted(IMAGE_SUFFIXES))}")
        return found[: MAX_IMAGES + 1]

    def read(self, name: str) -> bytes:
        """The content of an image; one byte more than is allowed at most."""
        file = self._inside(name)
        if not (file.is_file() and is_image(file.name)):
            raise InputError(f"'{name}' is no image below the folder that was named at start")
        try:
            with file.open("rb") as content:
                return content.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"'{name}' cannot be read: {error.strerror}") from error

    def _inside(self, name: str) -> Path:
        try:
            root = self.root.resolve()
            path = (root / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:  # it does not exist, has a zero byte, links in a circle
            raise InputError(f"'{name}' is not below the folder that was named at start") from error
        if not path.is_relative_to(root):
            raise InputError(f"'{name}' is not below the folder that was named at start")
        return path
