"""Kedro's file datasets, each replaced in one step, with previews for kedro-viz."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from kedro.io.core import DatasetError
from kedro_datasets._typing import HTMLPreview, ImagePreview, PlotlyPreview, TablePreview
from kedro_datasets.json import JSONDataset
from kedro_datasets.matplotlib import MatplotlibDataset
from kedro_datasets.pandas import CSVDataset, ParquetDataset
from kedro_datasets.text import TextDataset
from PIL import Image

from mpfm_kedro.datasets.previews import show_curves, show_histogram, show_image, show_page, show_table, show_text
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import AGAIN, first_line, load_table, replacing, save_table


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
            raise InputError(f"{self._filepath} is damaged ({first_line(error.__cause__)}); {AGAIN}") from error


class AtomicCSVDataset(_Atomic, CSVDataset):
    """A CSV table, replaced in one step."""

    def preview(self, nrows: int = 50) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(self.load().head(nrows))


class AtomicParquetDataset(ParquetDataset):
    """A Parquet table with a checksum, replaced in one step; with or without versions."""

    def save(self, data: pd.DataFrame) -> None:
        """Save through a temporary file."""
        save_table(data, Path(self._get_save_path()))
        self._invalidate_cache()

    def load(self) -> pd.DataFrame:
        """The table, after its checksum was verified."""
        return load_table(Path(self._get_load_path()))

    def preview(self, nrows: int = 20) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(pd.read_parquet(self._filepath).head(nrows))


class HistogramParquetDataset(AtomicParquetDataset):
    """A Parquet table that kedro-viz shows as a histogram."""

    def preview(self, values: str, by: str, where: str) -> PlotlyPreview:  # type: ignore[override]
        """The distribution of a column in the rows that ``where`` selects, one colour for each value of ``by``."""
        return show_histogram(pd.read_parquet(self._filepath).query(where), values, by)


class CurvesParquetDataset(AtomicParquetDataset):
    """A Parquet table that kedro-viz shows as curves."""

    def preview(self, values: str, over: str, by: str) -> PlotlyPreview:  # type: ignore[override]
        """The course of a column over another one, one line for each value of ``by``."""
        return show_curves(pd.read_parquet(self._filepath), values, over, by)


class AtomicJSONDataset(_Atomic, JSONDataset):
    """A JSON document, replaced in one step."""


class AtomicTextDataset(_Atomic, TextDataset):
    """A text, replaced in one step."""

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
