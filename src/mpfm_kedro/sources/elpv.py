"""ELPV: electroluminescence images of solar cells, from the package ``elpv-dataset``.

``labels.csv`` gives path, probability of a defect and cell type. Probability 0 is normal, 1 an anomaly of the
class of its cell type (mono or poly); the uncertain ones between are dropped.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import find_folder
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

TITLE = "ELPV"
OBTAIN = "the package elpv-dataset (a dependency of this project)"
COLUMNS = ["path", "probability", "type"]


def locate(root: Path) -> Path:
    """A copy below the data root if there is one, else the installed package."""
    own = root / "elpv"
    if own.is_dir():
        return find_folder(own, TITLE, ["labels.csv"], OBTAIN)
    package = find_spec("elpv_dataset")
    if package is None or package.origin is None:
        raise InputError(f"{TITLE}: neither {own} nor the package elpv-dataset is there: pip install elpv-dataset")
    return Path(package.origin).parent / "data"


def list_samples(folder: Path) -> pd.DataFrame:
    """The certain cells of labels.csv."""
    labels = read_labels(folder / "labels.csv")
    certain = labels[labels["probability"].isin([0, 1])]
    for path in certain["path"].fillna(""):
        if not (folder / path).is_file():
            raise InputError(f"{TITLE}: {folder / path} is missing, and labels.csv names it")
    return sample_table(
        sample("elpv", path, int(probability), kind if probability else "")
        for path, probability, kind in zip(*(certain[name].tolist() for name in COLUMNS), strict=True)
    )


def read_labels(file: Path) -> pd.DataFrame:
    """Path, probability and type of every cell."""
    try:
        labels = pd.read_csv(file, sep=r"\s+|,", engine="python", names=COLUMNS)
        labels = labels.astype({"path": str, "probability": float})
    except (OSError, ValueError) as error:
        raise InputError(f"{TITLE}: cannot read {file}: {error}") from error
    if labels.empty:
        raise InputError(f"{TITLE}: {file} is empty; expected are lines of path, probability and type")
    if not labels["probability"].between(0, 1).all():
        raise InputError(f"{TITLE}: {file} has probabilities outside 0 to 1")
    unknown = set(labels["type"]) - {"mono", "poly"}
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise InputError(f"{TITLE}: {file} has cell types {names}; allowed are mono and poly")
    return labels


SOURCE = Source(
    name="elpv",
    title="ELPV solar cells",
    licence="CC BY-NC-SA 4.0",
    obtain=OBTAIN,
    counts={"": Counts(train=1131, test=377, anomalies={"mono": 313, "poly": 402})},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
