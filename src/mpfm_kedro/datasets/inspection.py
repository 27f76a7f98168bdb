"""The Kedro datasets of the inspection line: collection, production model, summaries of settings, predictions."""

import shlex
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from kedro.io import AbstractVersionedDataset, Version
from kedro_datasets._typing import JSONPreview, TablePreview

from mpfm_kedro.atomic import REBUILD_HINT, load_table, replacing, save_table
from mpfm_kedro.datasets.files import PathDataset, read_file
from mpfm_kedro.datasets.previews import show_table
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import RECALLS
from mpfm_kedro.inspection.collection import COLUMNS, Collection
from mpfm_kedro.inspection.model import CARD, Model, load_model, read_card, save_model
from mpfm_kedro.inspection.versions import restore_command, versions_by_digest

RESTORE = "kedro versions use brings back the collection of a version of the production model"


class CollectionDataset(PathDataset):
    """A folder of images that were learned after the dataset, with a table; empty at first.

    Of the table of an interrupted run only what the ``model`` has learned counts, where one is named and readable.
    """

    def __init__(self, filepath: str, model: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(filepath, metadata)
        self.model = model

    def load(self) -> Collection:
        """The collection."""
        if self.model is not None:
            with suppress(InputError):
                return Collection(self.path, pd.DataFrame(read_card(Path(self.model))["learned"], columns=COLUMNS))
        table = load_table(self.table, RESTORE) if self.table.is_file() else pd.DataFrame(columns=COLUMNS)
        return Collection(self.path, table)

    def save(self, data: Collection) -> None:
        """First the files, then the table that names them."""
        for name, content in data.new.items():
            with replacing(self.path / name) as partial:
                partial.write_bytes(content)
        save_table(data.table, self.table)

    @property
    def table(self) -> Path:
        """The file of the table."""
        return self.path / "collection.parquet"

    def preview(self) -> TablePreview:
        """The table, for kedro-viz."""
        return show_table(self.load().table)


class ModelFolderDataset(AbstractVersionedDataset[Model, Model]):
    """A folder with a production model. Versions share the files that did not change."""

    def __init__(self, filepath: str, version: Version | None = None, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(PurePosixPath(filepath), version)
        self.metadata = metadata

    def load(self) -> Model:
        """The model, after its files were checked."""
        return load_model(Path(self._get_load_path() if self._version else self._filepath))

    def save(self, data: Model) -> None:
        """Write the folder in one step."""
        folder = Path(self._get_save_path() if self._version else self._filepath)
        before = sorted(Path(self._filepath).glob(f"*/{folder.name}")) if self._version else []
        save_model(data, folder, like=before[-1] if before else None)

    def preview(self) -> JSONPreview:
        """The card, for kedro-viz."""
        return JSONPreview((Path(self._filepath) / CARD).read_text())

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath), "version": self._version}


class SummariesDataset(PathDataset):
    """summary.csv of the settings of a dataset that were run."""

    def load(self) -> dict[str, Any]:
        """The rows of the summary by setting, without undefined values; empty where no setting was run."""
        files = {setting: self.path / setting / "summary.csv" for setting in ("general", "hard")}
        return {setting: self._rows(file) for setting, file in files.items() if file.is_file()}

    def _rows(self, file: Path) -> list[dict[Hashable, Any]]:
        names = ["method", "category", "known_class", "n_anomalies", "n_seeds"]
        names += [f"{measure}_{kind}" for measure in ("auc", "ap", *RECALLS) for kind in ("mean", "std")]
        rows = select(file, names, REBUILD_HINT).dropna(subset="auc_mean").to_dict("records")
        return [{name: value for name, value in row.items() if not pd.isna(value)} for row in rows]


class VersionsDataset(PathDataset):
    """The versions of a production model, with the command that restores each."""

    def __init__(self, filepath: str, output_root: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(filepath, metadata)
        self.root = output_root

    def load(self) -> dict[str, str]:
        """Commands by the digest of the model."""
        dataset, versions = self.path.parents[1].name, versions_by_digest(self.path)
        return {digest: shlex.join(restore_command(dataset, one, self.root)) for digest, one in versions.items()}


class EarlierPredictionsDataset(PathDataset):
    """The tables of all batches that were predicted, an image once; empty where there was none."""

    def load(self) -> pd.DataFrame:
        """Paths and errors."""
        files, columns = sorted(self.path.glob("*/predictions.csv")), ["path", "error"]
        tables = [select(file, columns, "delete it, or predict again") for file in files]
        table = pd.concat([pd.DataFrame(columns=columns), *tables], ignore_index=True)
        return table.drop_duplicates("path", keep="last")


def select(file: Path, columns: list[str], advice: str) -> pd.DataFrame:
    """Some columns of a table; one without them is damaged."""
    table = read_file(file, advice)
    if missing := sorted({*columns} - {*table}):
        raise InputError(f"{file} is damaged ({missing} are missing); {advice}")
    return table[columns]
