"""Files by their suffix, each replaced in one step; datasets of a path, and of several files of one node."""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pandas as pd
from kedro.io import AbstractDataset
from kedro_datasets._typing import PlotlyPreview, TablePreview
from PIL import Image

from mpfm_kedro.atomic import REBUILD_HINT, first_line, load_table, replacing, save_table
from mpfm_kedro.datasets.previews import show_curves, show_table
from mpfm_kedro.errors import InputError

# a class may be called 007; all other columns of a CSV table are numbers
TEXTS = ["dataset", "category", "setting", "known_class", "tested_class", "defect_class", "run", "method", "verdict"]
TEXTS += ["sample", "note", "name", "status", "images", "problem", "path", "decision", "flagged_by", "box", "error"]
TEXTS += ["taught", "decision_before", "decision_after", "decision_held_out"]
FILE_LINK = re.compile(r'href="(file://[^"]+)"')


def read_file(path: Path, advice: str = REBUILD_HINT) -> Any:
    """A table, a JSON document, a figure or a text; a damaged one is an error that names it and gives the advice."""
    if not path.is_file():
        raise InputError(f"{path} is missing; first run the pipeline that makes it, or for a study: kedro study FILE")
    if path.suffix == ".parquet":
        return load_table(path, advice)
    try:
        if path.suffix == ".png":
            return Image.open(path)
        if path.suffix == ".csv":
            numbers = {name: [""] for name in pd.read_csv(path, nrows=0).columns if name not in TEXTS}
            return pd.read_csv(path, keep_default_na=False, na_values=numbers, dtype=dict.fromkeys(TEXTS, str))
        content = path.read_text(encoding="utf-8")
        return json.loads(content) if path.suffix == ".json" else content
    except ValueError as error:
        raise InputError(f"{path} is damaged ({first_line(error)}); {advice}") from error


def write_file(data: Any, path: Path) -> None:
    """Replace a table, a JSON document, a figure or a text; links of a page are relative to its folder."""
    if path.suffix == ".parquet":
        return save_table(data, path)
    with replacing(path) as partial:
        if path.suffix == ".csv":
            data.to_csv(partial, index=False)
        elif path.suffix == ".png":
            data.savefig(partial, format="png", dpi=110)
        elif path.suffix == ".json":
            partial.write_text(json.dumps(data, indent=1), encoding="utf-8")
        else:
            text = FILE_LINK.sub(lambda link: f'href="{_relative(link[1], path.parent)}"', data)
            partial.write_text(text, encoding="utf-8")


def _relative(uri: str, folder: Path) -> str:
    return quote(Path(os.path.relpath(unquote(urlsplit(uri).path), folder)).as_posix())


class PathDataset(AbstractDataset[Any, Any]):
    """A file or folder that is written elsewhere, piece by piece; nothing there yet is no error."""

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self.path, self.metadata = Path(filepath), metadata

    def load(self) -> Any:
        """The path."""
        return self.path

    def save(self, data: Any) -> None:
        """It is written elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} is only read: {self.path} is written elsewhere")

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self.path)}

    def _exists(self) -> bool:
        return True


class FilesDataset(PathDataset):
    """Several files of one node in a folder, by the names of tables and figures."""

    def __init__(self, filepath: str, files: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        super().__init__(filepath, metadata)
        self.files = {name: self.path / file for name, file in files.items()}

    def load(self) -> dict[str, Any]:
        """What the files hold, by name."""
        return {name: read_file(file) for name, file in self.files.items()}

    def save(self, data: dict[str, Any]) -> None:
        """Replace each file."""
        for name, file in self.files.items():
            write_file(data[name], file)

    def _exists(self) -> bool:
        return all(file.is_file() for file in self.files.values())


class TablesDataset(FilesDataset):
    """Several tables, of which kedro-viz shows the first."""

    def preview(self, nrows: int = 50) -> TablePreview:
        """The first table."""
        return show_table(read_file(next(iter(self.files.values()))).head(nrows))


class CurvesDataset(FilesDataset):
    """Several tables, of which kedro-viz shows one as curves."""

    def preview(self, table: str, values: str, over: str, by: str) -> PlotlyPreview:
        """The course of ``values`` over another column, one line for each value of ``by``."""
        return show_curves(read_file(self.files[table]), values, over, by)
