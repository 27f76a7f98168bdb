"""HeadCT: slices of computed tomography; ``labels.csv`` (id, hemorrhage) tells which show a hemorrhage.

The images are ``head_ct/head_ct/<NNN>.png``, the id with leading zeros.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import find_folder, required_images
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

logger = logging.getLogger(__name__)
TITLE = "HeadCT"
OBTAIN = "F. Kitamura on Kaggle (Head CT - hemorrhage)"


def locate(root: Path) -> Path:
    """The folder of labels.csv and head_ct."""
    return find_folder(root / "headct", TITLE, ["labels.csv", "head_ct"], OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """The labelled slices."""
    return sample_table(_rows(folder))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    labels = read_labels(folder / "labels.csv")
    images = {file.stem: file for file in required_images(folder / "head_ct", TITLE)}
    for name, label in labels.items():
        if name not in images:
            raise InputError(f"{TITLE}: head_ct/head_ct/{name}.png is missing in {folder}, and labels.csv names it")
        path = images[name].relative_to(folder).as_posix()
        yield sample("headct", path, label, "hemorrhage" if label else "")
    for name in sorted(set(images) - set(labels)):
        logger.warning("%s: %s has no line in labels.csv and is skipped", TITLE, images[name])


def read_labels(file: Path) -> dict[str, int]:
    """The label of each image by its name without suffix; the published file has blanks after its commas."""
    try:
        table = pd.read_csv(file, skipinitialspace=True, dtype=str, keep_default_na=False)
        table = table.rename(columns=str.strip)[["id", "hemorrhage"]].apply(lambda column: column.str.strip())
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{TITLE}: cannot read {file}, expected are id and hemorrhage: {error}") from error
    if table.empty:
        raise InputError(f"{TITLE}: {file} has no line below its header")
    wrong = table[~(table["id"].str.fullmatch(r"\d+") & table["hemorrhage"].isin(["0", "1"]))]
    if len(wrong):
        found = ", ".join(wrong.iloc[0])
        raise InputError(f"{TITLE}: {file} has a line {found!r}; expected are a number and 0 or 1")
    names = table["id"].str.zfill(3)
    if names.duplicated().any():
        raise InputError(f"{TITLE}: {file} has the id {names[names.duplicated()].iloc[0]} twice")
    return dict(zip(names, table["hemorrhage"].astype(int), strict=True))


SOURCE = Source(
    name="headct",
    title=TITLE,
    licence="see the publisher",
    obtain=OBTAIN,
    counts={"": Counts(train=75, test=25, anomalies={"hemorrhage": 100})},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
