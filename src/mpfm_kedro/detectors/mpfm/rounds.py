"""Rounds of cross-fitting: what each round leaves out says what a model makes of images that it has not seen."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from mpfm_kedro.detectors.base import TrainingData

FINAL = -1  # the last round leaves nothing out


@dataclass(frozen=True)
class Rounds:
    """Which images each of R rounds learns from: round r leaves out fold r, the last round nothing.

    Every normal is left out once, with all of its item. So is every known anomaly, with all of its views, unless all
    show one item.

    Args:
        normals: which normals each round learns from (R, n), bool.
        anomalies: which known anomalies and views (R, m), bool.
    """

    normals: np.ndarray
    anomalies: np.ndarray

    @classmethod
    def of_folds(cls, fold: np.ndarray, data: TrainingData, seed: int) -> Self:
        """The rounds for the fold of each normal (n,) and the seed of the anomalies' folds."""
        n_rounds, items = int(fold.max()) + 2, data.anomaly_items
        number = np.arange(n_rounds)[:, None]
        of_known = np.full(len(items), n_rounds)
        if len(set(items)) > 1:
            of_normals = dict(zip(data.normal_items, fold, strict=True))  # a part may be known as good and as defective
            drawn = assign_folds(items, n_rounds - 1, seed)
            of_known = np.array([of_normals.get(item, other) for item, other in zip(items, drawn, strict=True)])
        return cls(fold != number, of_known[data.anomalies.source] != number)

    @property
    def learns(self) -> np.ndarray:
        """Which of all images each round learns from (R, n + m), bool."""
        return np.concatenate([self.normals, self.anomalies], 1)

    def __len__(self) -> int:
        return len(self.normals)


def assign_folds(items: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """A random fold for the item of each sample, (n,); at most one fold per item."""
    names, number = np.unique(items, return_inverse=True)
    n = len(names)
    return np.random.default_rng(seed).permutation(np.arange(n) % max(1, min(n_folds, n)))[number]
