"""Tables as Kedro datasets: each at a fixed place, replaced in one step, with versions elsewhere where they are kept.

A table may be given as a plan: what is to be computed is then computed here and kept in the memory, fit by fit.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from kedro.io import AbstractDataset, AbstractVersionedDataset, Version
from kedro_datasets._typing import JSONPreview, PlotlyPreview, TablePreview
from matplotlib.figure import Figure

from mpfm_kedro.atomic import REBUILD_HINT, first_line, load_table, replacing, save_table
from mpfm_kedro.datasets.previews import show_curves, show_histogram, show_table
from mpfm_kedro.errors import InputError
from mpfm_kedro.protocol.memory import Memory
from mpfm_kedro.protocol.trials import Trials

# a class may be called 007; all other columns of a CSV table are numbers
TEXTS = (
    "dataset",
    "category",
    "setting",
    "known_class",
    "tested_class",
    "defect_class",
    "run",
    "method",
    "verdict",
    "sample",
    "note",
)


class TableDataset(AbstractVersionedDataset[Any, Any]):
    """A Parquet table at ``filepath``; with ``versioned: true`` also a version of it below ``versions``.

    Args:
        filepath: The present table.
        versions: The folder of its versions.
        memory: The folder of fits, for tables that are given as plans.
        csv: A copy for people and other tools.
        version: Set by Kedro; a version to load takes precedence over the present table.
        metadata: Free for plugins.
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
        self._memory = Memory(Path(memory)) if memory else None
        self._csv = Path(csv) if csv else None
        kept = PurePosixPath(versions) / self.path.name if versions else PurePosixPath(filepath)
        super().__init__(kept, version if versions else None, os.path.exists, _glob)
        self.metadata = metadata

    def load(self) -> Any:
        """The table."""
        chosen = self._version is not None and self._version.load is not None
        return self.read(Path(self._get_load_path()) if chosen else self.path)

    def save(self, data: Any) -> None:
        """Compute what has to be, and replace the table."""
        self.write(data if self._memory is None else data.run(self._memory), self.path)
        if self._version is not None:
            link(self.path, Path(self._get_save_path()))

    def read(self, path: Path) -> Any:
        """The table of a file."""
        return load_table(path)

    def write(self, data: Any, path: Path) -> None:
        """Write a table."""
        save_table(data, path)
        if self._csv is not None:
            with replacing(self._csv) as partial:
                data.to_csv(partial, index=False)

    def preview(self, nrows: int = 20) -> TablePreview:
        """The first rows, for kedro-viz."""
        return show_table(pd.read_parquet(self.path).head(nrows))

    def _exists(self) -> bool:
        return self.path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self.path), "version": self._version}


class HistogramDataset(TableDataset):
    """A table that kedro-viz shows as a histogram."""

    def preview(self, values: str, by: str, where: str) -> PlotlyPreview:  # type: ignore[override]
        """The distribution of a column in the rows that ``where`` selects, one colour for each value of ``by``."""
        return show_histogram(pd.read_parquet(self.path).query(where), values, by)


class TrialsDataset(TableDataset):
    """The trials of a study with the keys of their fits, and the memory that has these."""

    def read(self, path: Path) -> Trials:
        """The trials."""
        assert self._memory is not None
        return Trials(load_table(path), self._memory)

    def preview(self, nrows: int = 20) -> TablePreview:
        """Run, method and keys, for kedro-viz."""
        return show_table(pd.read_parquet(self.path).drop(columns=["order", "changes"]).head(nrows))

    def _exists(self) -> bool:
        if not super()._exists():
            return False
        trials = self.read(self.path)
        return all(trials.memory.has(entry) for trial in trials for entry in trial.fits.values())


class MetricsDataset(TableDataset):
    """A JSON document at a fixed place, with versions."""

    def read(self, path: Path) -> dict[str, Any]:
        """The document."""
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is damaged ({first_line(error)}); {REBUILD_HINT}") from error

    def write(self, data: dict[str, Any], path: Path) -> None:
        """Replace the document."""
        with replacing(path) as partial:
            partial.write_text(json.dumps(data, indent=1), encoding="utf-8")

    def preview(self) -> JSONPreview:  # type: ignore[override]
        """The document, for kedro-viz."""
        return JSONPreview(self.path.read_text(encoding="utf-8"))


class TablesDataset(AbstractDataset[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]):
    """Several tables of one node in a folder, as CSV or Parquet by their names.

    Args:
        filepath: The folder.
        files: The name of the file of each table; kedro-viz shows the first.
        metadata: Free for plugins.
    """

    def __init__(self, filepath: str, files: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        self.path, self._files = Path(filepath), files
        self.metadata = metadata

    def load(self) -> dict[str, pd.DataFrame]:
        """The tables by name."""
        return {name: self._read(self.path / file) for name, file in self._files.items()}

    def save(self, data: dict[str, pd.DataFrame]) -> None:
        """Replace each table."""
        for name, file in self._files.items():
            if file.endswith(".csv"):
                with replacing(self.path / file) as partial:
                    data[name].to_csv(partial, index=False)
            else:
                save_table(data[name], self.path / file)

    def _read(self, path: Path) -> pd.DataFrame:
        if path.suffix != ".csv":
            return load_table(path)
        try:
            numbers = {name: [""] for name in pd.read_csv(path, nrows=0).columns if name not in TEXTS}
            return pd.read_csv(path, keep_default_na=False, na_values=numbers, dtype=dict.fromkeys(TEXTS, str))
        except ValueError as error:
            raise InputError(f"{path} is damaged ({first_line(error)}); {REBUILD_HINT}") from error

    def preview(self, nrows: int = 50) -> TablePreview:
        """The first table, for kedro-viz."""
        return show_table(self._read(self.path / next(iter(self._files.values()))).head(nrows))

    def _exists(self) -> bool:
        return all((self.path / file).is_file() for file in self._files.values())

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self.path), "files": self._files}


class CurvesDataset(TablesDataset):
    """Several tables, of which kedro-viz shows one as curves."""

    def preview(self, table: str, values: str, over: str, by: str) -> PlotlyPreview:  # type: ignore[override]
        """The course of ``values`` over another column, one line for each value of ``by``."""
        return show_curves(self._read(self.path / self._files[table]), values, over, by)


class FiguresDataset(AbstractDataset[dict[str, Figure], None]):
    """Figures as PNG files in a folder."""

    def __init__(self, filepath: str, names: list[str], metadata: dict[str, Any] | None = None) -> None:
        self.path, self._names = Path(filepath), names
        self.metadata = metadata

    def load(self) -> None:
        """Nothing: figures are for people."""

    def save(self, data: dict[str, Figure]) -> None:
        """Replace each figure."""
        for name in self._names:
            with replacing(self.path / f"{name}.png") as partial:
                data[name].savefig(partial, format="png", dpi=110)

    def _exists(self) -> bool:
        return all((self.path / f"{name}.png").is_file() for name in self._names)

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self.path), "names": self._names}


def link(file: Path, target: Path) -> None:
    """The same file under another name; it shares its disk blocks where the file system can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)


def _glob(pattern: str) -> list[str]:
    return [str(path) for path in Path("/").glob(pattern.lstrip("/"))]
