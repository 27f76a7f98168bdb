"""Rounds of cross-fitting: what each round leaves out says what a model makes of images that it has not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FINAL = -1  # the last round leaves nothing out


@dataclass(frozen=True)
class Rounds:
    """Which images each of R rounds learns from: round r leaves out fold r, the last round nothing.

    Every normal is left out once; every known anomaly too, with all of its views, unless it is the only one.

    Args:
        normals: which normals each round learns from (R, n), bool.
        anomalies: which known anomalies and views (R, m), bool.
    """

    normals: np.ndarray
    anomalies: np.ndarray

    @classmethod
    def of_folds(cls, fold: np.ndarray, source: np.ndarray, seed: int) -> Rounds:
        """The rounds for the fold of each normal (n,), the known anomaly of each row (m,) and the seed of its folds."""
        n_rounds, n_known = int(fold.max()) + 2, int(source.max(initial=-1)) + 1
        number = np.arange(n_rounds)[:, None]
        of_known = assign_folds(n_known, n_rounds - 1, seed) if n_known > 1 else np.full(n_known, n_rounds)
        return cls(fold != number, of_known[source] != number)

    @property
    def learns(self) -> np.ndarray:
        """Which of all images each round learns from (R, n + m), bool."""
        return np.concatenate([self.normals, self.anomalies], 1)

    def __len__(self) -> int:
        return len(self.normals)


def assign_folds(n: int, n_folds: int, seed: int) -> np.ndarray:
    """A random fold for each of n samples, (n,); at most one fold per sample."""
    return np.random.default_rng(seed).permutation(np.arange(n) % max(1, min(n_folds, n)))
