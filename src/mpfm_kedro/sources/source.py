"""What defines a dataset: where its files are, which samples they hold, how many there should be."""

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
    that a package ships); ``list_samples(folder)`` gives the sample table without decoding images.
    ``counts`` has an entry for each category, that of ``""`` for a dataset without categories; None if any
    number is fine. ``split`` says who divides the normals: this project, three to one; the dataset itself
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


def compare_counts(samples: pd.DataFrame, expected: Counts) -> list[str]:
    """What differs between the listed samples of one category and the published numbers."""
    normal = samples["label"] == 0
    anomalies = {str(name): int(n) for name, n in samples["defect_class"][~normal].value_counts().items()}
    problems = []
    if normal.sum() != expected.train + expected.test:
        problems.append(f"{normal.sum()} normal images, published are {expected.train + expected.test}")
    if isinstance(expected.anomalies, int):
        if sum(anomalies.values()) != expected.anomalies:
            problems.append(f"{sum(anomalies.values())} anomalies, published are {expected.anomalies}")
    else:
        for name in sorted(set(anomalies) | set(expected.anomalies)):
            found, published = anomalies.get(name, 0), expected.anomalies.get(name, 0)
            if found != published:
                problems.append(f"{found} anomalies of class '{name}', published are {published}")
    return problems
