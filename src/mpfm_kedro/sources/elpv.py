"""ELPV: electroluminescence images of solar cells, from the package ``elpv-dataset``.

``labels.csv`` gives path, probability of a defect and cell type. Probability 0 is normal, 1 an anomaly of the
class of its cell type (mono or poly); the uncertain ones between are dropped.
"""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import Layout, Rows, find_folder
from mpfm_kedro.sources.samples import sample
from mpfm_kedro.sources.source import Counts, Source

TITLE = "ELPV solar cells"
OBTAIN = "the package elpv-dataset (a dependency of this project)"
COLUMNS = ["path", "probability", "type"]


def locate(root: Path) -> Path:
    """A copy below the data root if there is one, else the installed package."""
    copy = root / "elpv"
    if copy.is_dir():
        return find_folder(copy, TITLE, ["labels.csv"], OBTAIN)
    package = find_spec("elpv_dataset")
    if package is None or package.origin is None:
        raise InputError(f"{TITLE}: neither {copy} nor the package elpv-dataset is there: pip install elpv-dataset")
    return Path(package.origin).parent / "data"


def _rows(layout: Layout) -> Rows:
    labels = read_labels(layout).fillna({"path": ""})
    for path, probability, kind in labels[labels["probability"].isin([0, 1])].itertuples(index=False):
        if not (layout.folder / path).is_file():
            raise layout.error(f"{layout.folder / path} is missing, and labels.csv names it")
        yield sample(layout.dataset, path, int(probability), kind if probability else "")


def read_labels(layout: Layout) -> pd.DataFrame:
    """Path, probability and type of every cell."""
    file = layout.folder / "labels.csv"
    try:
        labels = pd.read_csv(file, sep=r"\s+|,", engine="python", names=COLUMNS)
        labels = labels.astype({"path": str, "probability": float})
    except (OSError, ValueError) as error:
        raise layout.error(f"cannot read {file}: {error}") from error
    if labels.empty:
        raise layout.error(f"{file} is empty; expected are lines of path, probability and type")
    if not labels["probability"].between(0, 1).all():
        raise layout.error(f"{file} has probabilities outside 0 to 1")
    if unknown := sorted(map(str, set(labels["type"]) - {"mono", "poly"})):
        raise layout.error(f"{file} has cell types {', '.join(unknown)}; allowed are mono and poly")
    return labels


SOURCE = Source(
    name="elpv",
    title=TITLE,
    licence="CC BY-NC-SA 4.0",
    obtain=OBTAIN,
    counts={"": Counts(train=1131, test=377, anomalies={"mono": 313, "poly": 402})},
    find=locate,
    rows=_rows,
)
