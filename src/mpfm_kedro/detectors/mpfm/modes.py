"""Modes of the normals: as many parts as two halves of the normals agree about."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

STABLE = 0.95
MIN_HELD_OUT = 10  # normals; fewer cannot tell whether two partitions agree
STABILITY_DRAWS = 4
MIN_VARIANCE_SHARE = 0.02


def choose_partition(
    z: np.ndarray, fold: np.ndarray, max_modes: int, min_mode_size: int, seed: int
) -> tuple[np.ndarray, list[dict[str, float]]]:
    """The mode of each normal of z (n, d) with folds (n,), as labels (n,), and a row for each number of modes tried.

    The largest number of modes is taken whose partition is stable; a group that is too small, or has next to no
    variance (constant images), is not a mode.
    """
    labels = np.zeros(len(z), dtype=int)
    tried = [{"n_modes": 1, "stability": 1.0}]
    learned, held_out = z[fold != 0], z[fold == 0]
    if len(held_out) < MIN_HELD_OUT:
        max_modes = 1
    for n_modes in range(2, min(max_modes, len(learned) // min_mode_size) + 1):
        candidate = KMeans(n_modes, n_init=4, random_state=seed).fit_predict(z)
        if _are_modes(z, candidate, min_mode_size):
            agreement = stability(learned, held_out, n_modes, seed)
            tried.append({"n_modes": n_modes, "stability": agreement})
            labels = candidate if agreement >= STABLE else labels
    return labels, tried


def stability(z: np.ndarray, held_out: np.ndarray, n_modes: int, seed: int) -> float:
    """How far partitions learned from two halves of z agree on held_out normals: mean adjusted Rand index."""
    rng = np.random.default_rng(seed)
    agreements = []
    for _ in range(STABILITY_DRAWS):
        halves = np.array_split(rng.permutation(len(z)), 2)
        first, second = (KMeans(n_modes, n_init=4, random_state=seed).fit(z[half]) for half in halves)
        agreements.append(adjusted_rand_score(first.predict(held_out), second.predict(held_out)))
    return float(np.mean(agreements))


def _are_modes(z: np.ndarray, labels: np.ndarray, min_mode_size: int) -> bool:
    """Whether every group is large enough and varies."""
    groups = [z[labels == j] for j in range(labels.max() + 1)]
    varies = [group.var(0).mean() >= MIN_VARIANCE_SHARE * z.var(0).mean() for group in groups]
    return min(len(group) for group in groups) >= min_mode_size and all(varies)
