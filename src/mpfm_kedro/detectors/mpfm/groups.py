"""Groups and modes of the normals.

Groups are the Gaussian mixture whose weights the velocity mixture and the calibration use. Their principal components
are not whitened: a whitened cloud is one ball without groups. Where there are no groups, the posterior is flat, so no
rule has to decide whether there are any. Modes are as many parts as two halves of the normals agree about.
"""

import logging
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from mpfm_kedro.detectors.mpfm.tensors import TensorModule, squared_distances

logger = logging.getLogger(__name__)

COMPONENTS = 64  # principal components
NORMALS_PER_GROUP = 8
SHARPNESS = 1.5  # β
EMPTY_SHARE = 1e-12  # of a group that a fold leaves without normals
STABLE = 0.95
MIN_HELD_OUT = 10  # normals; fewer cannot tell whether two partitions agree
STABILITY_DRAWS = 4
MIN_VARIANCE_SHARE = 0.02


class Groups(TensorModule):
    """K groups and J modes in y = Pᵀ z, the principal components of standardised features.

    p_k(z) = softmax_k(log π_k − (β / p) ‖y − c_k‖² / (2 s₀²)): likelihoods per dimension, times β. They are the
    weights π_k(z_0) of the velocity mixture. A mode is a large, stable part of the normals: each has its own
    prototypes of patches and its own weights of the scores.
    """

    basis: Tensor  # P (d, p)
    center: Tensor  # c (K, p)
    share: Tensor  # π (K,)
    variance: Tensor  # s₀², ()
    mode_center: Tensor  # (J, p)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Group weights p_k(z) (B, K) and the mode (B,), that of the nearest centre, of z (B, d)."""
        y = z @ self.basis
        tempered = SHARPNESS / y.shape[1] * squared_distances(y, self.center) / (2 * self.variance)
        return (self.share.log() - tempered).softmax(1), squared_distances(y, self.mode_center).argmin(1)


@dataclass(frozen=True)
class Partition:
    """The partition of n normals into K groups and J modes, from which each round makes its own ``Groups``."""

    basis: np.ndarray  # P (d, p)
    y: np.ndarray  # principal components of the normals (n, p)
    group: np.ndarray  # of each normal (n,), 0 … K − 1
    mode: np.ndarray  # of each normal (n,), 0 … J − 1
    modes_tried: list[dict[str, float]]  # one row for each number of modes that was tried

    @property
    def n_groups(self) -> int:
        """K."""
        return int(self.group.max()) + 1

    @property
    def n_modes(self) -> int:
        """J."""
        return int(self.mode.max()) + 1

    def groups(self, kept: np.ndarray) -> Groups:
        """The groups of the normals that a round learns from, (n,) bool: same partition, its own centres and shares.

        A group without any of them keeps next to no share; its centre is that of all.
        """
        y, group = self.y[kept], self.group[kept]
        center = means_of(y, group, self.n_groups)
        arrays = {
            "basis": self.basis,
            "center": center,
            "share": np.maximum(np.bincount(group, minlength=self.n_groups) / len(y), EMPTY_SHARE),
            "variance": np.maximum(np.square(y - center[group]).mean(), 1e-12),
            "mode_center": means_of(y, self.mode[kept], self.n_modes),
        }
        return Groups(**{name: torch.tensor(array, dtype=torch.float) for name, array in arrays.items()})


def fit_partition(
    z: np.ndarray, fold: np.ndarray, n_groups: int, max_modes: int, min_mode_size: int, seed: int, raw: bool = False
) -> Partition:
    """K-means++ on the principal components of standardised normals (n, d) with folds (n,).

    The printed form has ``raw`` features: all of their components, and no least number of normals in a group.
    """
    components, solver = (min(z.shape), "full") if raw else (min(COMPONENTS, *z.shape), "randomized")
    basis = PCA(components, svd_solver=solver, random_state=seed).fit(z).components_.T
    y = z @ basis
    allowed = len(z) if raw else max(1, len(z) // NORMALS_PER_GROUP)
    if n_groups > allowed:
        logger.info("%d groups are too many for %d normals: %d are used", n_groups, len(z), allowed)
    mode, tried = choose_modes(y, fold, max_modes, min_mode_size, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        label = KMeans(min(n_groups, allowed), n_init=1, random_state=seed).fit_predict(y)
    group = np.unique(label, return_inverse=True)[1]  # repeated images leave clusters empty
    return Partition(basis, y, group, mode, tried)


def means_of(x: np.ndarray, label: np.ndarray, number: int) -> np.ndarray:
    """The mean of each of some groups of rows, (n, d) and labels (n,) → (number, d); of all rows for an empty group."""
    size = np.bincount(label, minlength=number)
    member = np.zeros((number, len(x)), dtype=x.dtype)
    member[label, np.arange(len(x))] = 1 / size[label]
    means = member @ x
    means[size == 0] = x.mean(0)
    return means


def choose_modes(
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
        groups = [z[candidate == j] for j in range(candidate.max() + 1)]
        varies = [group.var(0).mean() >= MIN_VARIANCE_SHARE * z.var(0).mean() for group in groups]
        if min(map(len, groups)) >= min_mode_size and all(varies):
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
