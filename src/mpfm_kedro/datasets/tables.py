"""One file each as a Kedro dataset: at a fixed path, replaced in one step, with versions elsewhere where they are kept.

A table may be given as a plan: what is to be computed is then computed here and kept in the memory, fit by fit.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from kedro.io import AbstractVersionedDataset, Version
from kedro_datasets._typing import HTMLPreview, ImagePreview, JSONPreview, PlotlyPreview, TablePreview

from mpfm_kedro.atomic import load_table
from mpfm_kedro.datasets.files import read_file, write_file
from mpfm_kedro.datasets.previews import show_histogram, show_image, show_page, show_table, show_text
from mpfm_kedro.protocol.memory import Memory
from mpfm_kedro.protocol.trials import Trials


class FileDataset(AbstractVersionedDataset[Any, Any]):
    """A file at ``filepath``, by its suffix; with ``versioned: true`` also a version of it below ``versions``.

    ``memory`` is the folder of fits, for tables that are given as plans; ``csv`` is a copy for people and other tools.
    """

    def __init__(
        self,
        filepath: str,
        versions: str | None = None,
        memory: str | None = None,
        csv: str | None = None,
        version: Version | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.path = Path(filepath)
        self.memory = Memory(Path(memory)) if memory else None
        self.copy = Path(csv) if csv else None
        kept = PurePosixPath(versions) / self.path.name if versions else PurePosixPath(filepath)
        super().__init__(kept, version if versions else None)
        self.metadata = metadata

    def load(self) -> Any:
        """What the file holds, or the version that was chosen."""
        chosen = self._version is not None and self._version.load is not None
        return read_file(Path(self._get_load_path()) if chosen else self.path)

    def save(self, data: Any) -> None:
        """Compute what has to be, and replace the file."""
        result = data if self.memory is None else data.run(self.memory)
        write_file(result, self.path)
        if self.copy is not None:
            write_file(result, self.copy)
        if self._version is not None:
            link(self.path, Path(self._get_save_path()))

    def _exists(self) -> bool:
        return self.path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self.path), "version": self._version}


class TableDataset(FileDataset):
    """A table in Parquet or CSV."""

    def preview(self, nrows: int = 50) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(read_file(self.path).head(nrows))


class HistogramDataset(FileDataset):
    """A table that kedro-viz shows as a histogram."""

    def preview(self, values: str, by: str, where: str) -> PlotlyPreview:
        """The distribution of a column in the rows that ``where`` selects, one colour for each value of ``by``."""
        return show_histogram(read_file(self.path).query(where), values, by)


class TrialsDataset(FileDataset):
    """The trials of a study with the keys of their fits, and the memory that has these."""

    def load(self) -> Trials:
        """The trials."""
        assert self.memory is not None
        return Trials(super().load(), self.memory)

    def preview(self, nrows: int = 20) -> TablePreview:
        """Run, method and keys, for kedro-viz."""
        return show_table(load_table(self.path).drop(columns=["order", "changes"]).head(nrows))

    def _exists(self) -> bool:
        if self.memory is None or not super()._exists():
            return False
        trials = Trials(load_table(self.path), self.memory)
        return all(self.memory.has(entry) for trial in trials for entry in trial.fits.values())


class MetricsDataset(FileDataset):
    """A JSON document."""

    def preview(self) -> JSONPreview:
        """The document, for kedro-viz."""
        return JSONPreview(self.path.read_text(encoding="utf-8"))


class MlflowMetricsDataset(MetricsDataset):
    """The document of metrics, whose numbers also go to the MLflow run that kedro-mlflow has opened (conf/mlflow)."""

    def save(self, data: dict[str, Any]) -> None:
        """Replace the document, and log its numbers."""
        import mlflow  # an optional package

        super().save(data)
        mlflow.log_metrics({name: value for name, value in data.items() if isinstance(value, int | float)})


class TextDataset(FileDataset):
    """A text or a page."""

    def preview(self) -> HTMLPreview:
        """The text as it is, for kedro-viz; a page as a page."""
        return (show_page if self.path.suffix == ".html" else show_text)(read_file(self.path))


class FigureDataset(FileDataset):
    """A figure as PNG."""

    def preview(self) -> ImagePreview:
        """The figure, for kedro-viz."""
        with read_file(self.path) as image:
            return show_image(image)


def link(file: Path, target: Path) -> None:
    """The same file under another name; it shares its disk blocks where the file system can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)
