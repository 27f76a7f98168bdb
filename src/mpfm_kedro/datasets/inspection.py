"""The Kedro datasets of the inspection line: collection, production model, summaries of settings, predictions."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pandas as pd
from kedro.io import AbstractDataset, AbstractVersionedDataset, Version
from kedro_datasets._typing import JSONPreview, TablePreview

from mpfm_kedro.atomic import REBUILD_HINT, first_line, replacing
from mpfm_kedro.datasets.previews import show_table
from mpfm_kedro.datasets.reading import ReadOnlyDataset
from mpfm_kedro.errors import InputError

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from mpfm_kedro.inspection.collection import Collection
    from mpfm_kedro.inspection.model import Model


RESTORE = "kedro versions use brings back the collection of a version of the production model"


class CollectionDataset(AbstractDataset["Collection", "Collection"]):
    """A folder of images that were learned after the dataset, with a table; empty at first.

    Of the table of an interrupted run only what the ``model`` has learned counts, where one is named and readable.
    """

    def __init__(self, filepath: str, model: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        self._folder = Path(filepath)
        self._model = model
        self.metadata = metadata

    def load(self) -> Collection:
        """The collection."""
        from mpfm_kedro.inspection.collection import COLUMNS, Collection
        from mpfm_kedro.inspection.model import read_card

        if self._model is not None:
            with suppress(InputError):
                return Collection(self._folder, pd.DataFrame(read_card(Path(self._model))["learned"], columns=COLUMNS))
        if not self._table.is_file():
            return Collection(self._folder, pd.DataFrame(columns=COLUMNS))
        try:
            return Collection(self._folder, pd.read_parquet(self._table))
        except Exception as error:  # pyarrow answers a damaged file with exceptions of a dozen types
            raise InputError(f"{self._table} is damaged ({first_line(error)}); {RESTORE}") from error

    def save(self, data: Collection) -> None:
        """First the files, then the table that names them."""
        for name, content in data.new.items():
            with replacing(self._folder / name) as partial:
                partial.write_bytes(content)
        with replacing(self._table) as partial:
            data.table.to_parquet(partial)

    @property
    def _table(self) -> Path:
        return self._folder / "collection.parquet"

    def preview(self) -> TablePreview:
        """The table, for kedro-viz."""
        return show_table(self.load().table)

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._folder)}

    def _exists(self) -> bool:
        return True


class ModelFolderDataset(AbstractVersionedDataset["Model", "Model"]):
    """A folder with a production model. Versions share the files that did not change."""

    def __init__(self, filepath: str, version: Version | None = None, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(PurePosixPath(filepath), version, exists_function=lambda path: Path(path).is_dir())
        self.metadata = metadata

    def load(self) -> Model:
        """The model, after its files were checked."""
        from mpfm_kedro.inspection.model import load_model

        return load_model(Path(self._get_load_path() if self._version else self._filepath))

    def save(self, data: Model) -> None:
        """Write the folder in one step."""
        from mpfm_kedro.inspection.model import save_model

        folder = Path(self._get_save_path() if self._version else self._filepath)
        before = sorted(Path(self._filepath).glob(f"*/{folder.name}")) if self._version else []
        save_model(data, folder, like=before[-1] if before else None)

    def preview(self) -> JSONPreview:
        """The card, for kedro-viz."""
        from mpfm_kedro.inspection.model import CARD

        return JSONPreview((Path(self._filepath) / CARD).read_text())

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath), "version": self._version}


class SummariesDataset(ReadOnlyDataset[dict[str, Any]]):
    """summary.csv of the settings of a dataset that were run."""

    def load(self) -> dict[str, Any]:
        """The rows of the summary by setting; empty where no setting was run."""
        files = {setting: self._path / setting / "summary.csv" for setting in ("general", "hard")}
        return {setting: self._read(file) for setting, file in files.items() if file.is_file()}

    def _read(self, file: Path) -> Any:
        names = dict.fromkeys(["method", "category", "known_class"], str)  # a class may be called 007
        try:
            table = pd.read_csv(file, keep_default_na=False, na_values={"auc_mean": ""}, dtype=names)
            shown = table[[*names, "n_anomalies", "auc_mean", "auc_std", "ap_mean", "ap_std", "n_seeds"]]
            return shown.dropna(subset="auc_mean").to_dict("records")
        except (ValueError, KeyError) as error:
            raise InputError(f"{file} is damaged ({first_line(error)}); {REBUILD_HINT}") from error


class VersionsDataset(ReadOnlyDataset[dict[str, str]]):
    """The versions of a production model, with the command that restores each."""

    def __init__(self, filepath: str, output_root: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(filepath, metadata)
        self._root = output_root

    def load(self) -> dict[str, str]:
        """Commands by the digest of the model."""
        from mpfm_kedro.inspection.versions import restore_command, versions_by_digest

        dataset, versions = self._path.parents[1].name, versions_by_digest(self._path)
        return {digest: shlex.join(restore_command(dataset, one, self._root)) for digest, one in versions.items()}


class EarlierPredictionsDataset(ReadOnlyDataset[pd.DataFrame]):
    """The tables of all batches that were predicted, an image once; empty where there was none."""

    def load(self) -> pd.DataFrame:
        """Paths and errors."""
        tables = [pd.DataFrame(columns=["path", "error"])]
        for file in sorted(self._path.glob("*/predictions.csv")):
            try:
                tables.append(pd.read_csv(file, keep_default_na=False)[["path", "error"]])
            except (ValueError, KeyError) as error:
                raise InputError(f"{file} is damaged ({first_line(error)}); delete it, or predict again") from error
        return pd.concat(tables, ignore_index=True).drop_duplicates("path", keep="last")
