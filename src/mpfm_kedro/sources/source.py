"""What a dataset must tell: where its files are, which samples they hold, how many there should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd


@dataclass(frozen=True)
class Counts:
    """Published numbers: training normals, test normals, anomalies by class or, failing that, in all."""

    train: int
    test: int
    anomalies: Mapping[str, int] | int


@dataclass(frozen=True)
class Source:
    """One dataset.

    ``locate(root)`` gives the folder with the files below ``<data_root>/<name>`` (or elsewhere, for a dataset
    that a package brings); ``list_samples(folder)`` gives the sample table without decoding images.
    ``counts`` has an entry for each category, that of ``""`` for a dataset without categories; None if any
    number will do. ``split`` says who divides the normals: this project, three to one; the dataset itself
    (``own``); or whichever the listed table shows (``listed``: where its split is empty, three to one).
    """

    name: str
    title: str
    licence: str
    obtain: str
    counts: Mapping[str, Counts] | None
    split: Literal["three_to_one", "own", "listed"]
    locate: Callable[[Path], Path]
    list_samples: Callable[[Path], pd.DataFrame]
