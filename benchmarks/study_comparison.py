"""The results of two studies, compared bit by bit, for ``killed_study.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from faults.project import results

NOT_COMPARED = ("plan.csv",)  # what was there when a study began


def largest_difference(here: Path, there: Path) -> tuple[int, int, float]:
    """Trials, scores, and the largest difference of two scores, over all comparisons."""
    trials, count, largest = 0, 0, 0.0
    for file in sorted(here.glob("07_model_output/*/comparison/scores.parquet")):
        one, other = pd.read_parquet(file), pd.read_parquet(there / file.relative_to(here))
        numbers = one.select_dtypes("number").columns
        names = one.columns.difference(numbers)
        pd.testing.assert_frame_equal(one[names], other[names])  # the same trials and samples in the same order
        trials, count = trials + one.groupby(["run", "method"]).ngroups, count + len(one)
        largest = max(largest, distance(one[numbers].to_numpy(float), other[numbers].to_numpy(float)))
    return trials, count, largest


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two tables; infinite where only one of them has a number."""
    different = (one != other) & ~(np.isnan(one) & np.isnan(other))
    apart = np.abs(one[different] - other[different])
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))


def compared(here: Path, there: Path) -> tuple[dict[str, int], list[str]]:
    """How many results of each kind both studies have, and the names of those that differ in any bit."""
    digests = [
        {name: digest for name, digest in results(out).items() if not name.endswith(NOT_COMPARED)}
        for out in (here, there)
    ]
    different = [name for name in digests[0].keys() | digests[1].keys() if digests[0].get(name) != digests[1].get(name)]
    kinds = {
        "feature files": "features ",
        "models": "06_models",
        "tables of scores and samples": "0",
        "tables of results": "08_reporting",
    }
    counts = dict.fromkeys(kinds, 0)
    for name in digests[0]:
        counts[max((kind for kind in kinds if name.startswith(kinds[kind])), key=lambda kind: len(kinds[kind]))] += 1
    return counts, sorted(different)
