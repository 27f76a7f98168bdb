"""Kedro's file datasets, each replaced in one step, with previews for kedro-viz."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from kedro.io.core import DatasetError
from kedro_datasets._typing import HTMLPreview, ImagePreview, TablePreview
from kedro_datasets.matplotlib import MatplotlibDataset
from kedro_datasets.pandas import CSVDataset
from kedro_datasets.text import TextDataset
from PIL import Image

from mpfm_kedro.atomic import REBUILD_HINT, first_line, replacing
from mpfm_kedro.datasets.previews import show_image, show_page, show_table, show_text
from mpfm_kedro.errors import InputError

FILE_LINK = re.compile(r'href="(file://[^"]+)"')


def _relative(uri: str, folder: Path) -> str:
    return quote(Path(os.path.relpath(unquote(urlsplit(uri).path), folder)).as_posix())


class _Atomic:
    """Mixin for file datasets without versions: ``save`` replaces the file in one step."""

    _filepath: PurePosixPath

    def save(self, data: Any) -> None:
        """Save through a temporary file."""
        target = self._filepath
        try:
            with replacing(Path(target)) as partial:
                self._filepath = PurePosixPath(partial)
                super().save(data)  # type: ignore[misc]
        finally:
            self._filepath = target

    def load(self) -> Any:
        """What the file holds; one that cannot be read is named."""
        try:
            return super().load()  # type: ignore[misc]
        except DatasetError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            raise InputError(f"{self._filepath} is damaged ({first_line(error.__cause__)}); {REBUILD_HINT}") from error


class AtomicCSVDataset(_Atomic, CSVDataset):
    """A CSV table, replaced in one step."""

    def preview(self, nrows: int = 50) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(self.load().head(nrows))


class AtomicTextDataset(_Atomic, TextDataset):
    """A text, replaced in one step; links to files of this machine are written relative to its folder."""

    def save(self, data: str) -> None:
        """Save through a temporary file."""
        folder = Path(self._filepath).parent
        super().save(FILE_LINK.sub(lambda link: f'href="{_relative(link[1], folder)}"', data))

    def preview(self) -> HTMLPreview:
        """The text as it is, for kedro-viz; a page as a page."""
        text = Path(self._filepath).read_text()
        return show_page(text) if self._filepath.suffix == ".html" else show_text(text)


class AtomicMatplotlibDataset(_Atomic, MatplotlibDataset):
    """A figure, replaced in one step."""

    def preview(self) -> ImagePreview:
        """The figure, for kedro-viz."""
        with Image.open(self._filepath) as image:
            return show_image(image)
