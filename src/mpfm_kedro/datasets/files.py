"""Kedro's file datasets, each replaced in one step, with previews for kedro-viz."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from kedro_datasets._typing import HTMLPreview, ImagePreview, PlotlyPreview, TablePreview
from kedro_datasets.json import JSONDataset
from kedro_datasets.matplotlib import MatplotlibDataset
from kedro_datasets.pandas import CSVDataset, ParquetDataset
from kedro_datasets.text import TextDataset
from PIL import Image

from mpfm_kedro.datasets.previews import show_curves, show_histogram, show_image, show_page, show_table, show_text
from mpfm_kedro.files import replacing


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


class AtomicCSVDataset(_Atomic, CSVDataset):
    """A CSV table, replaced in one step."""

    def preview(self, nrows: int = 50) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(self.load().head(nrows))


class AtomicParquetDataset(_Atomic, ParquetDataset):
    """A Parquet table, replaced in one step."""

    def preview(self, nrows: int = 20) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(pd.read_parquet(self._filepath).head(nrows))


class HistogramParquetDataset(_Atomic, ParquetDataset):
    """A Parquet table that kedro-viz shows as a histogram."""

    def preview(self, values: str, by: str, where: str) -> PlotlyPreview:
        """The distribution of a column in the rows that ``where`` selects, one colour for each value of ``by``."""
        return show_histogram(pd.read_parquet(self._filepath).query(where), values, by)


class CurvesParquetDataset(_Atomic, ParquetDataset):
    """A Parquet table that kedro-viz shows as curves."""

    def preview(self, values: str, over: str, by: str) -> PlotlyPreview:
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
