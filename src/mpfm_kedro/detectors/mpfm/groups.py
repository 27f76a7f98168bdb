"""Groups of the normals: the Gaussian mixture whose weights the velocity mixture and the calibration use.

The principal components are not whitened: a whitened cloud is one ball without groups. Where there are no groups, the
posterior is flat, so no rule has to decide whether there are any.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.modes import choose_partition

logger = logging.getLogger(__name__)

COMPONENTS = 64  # principal components
NORMALS_PER_GROUP = 8
SHARPNESS = 1.5  # β
NO_SHARE = 1e-12  # of a group that a fold leaves without normals


class Groups(nn.Module):
    """K groups and J modes in y = Pᵀ z, the principal components of standardised features.

    p_k(z) = softmax_k(log π_k − (β / p) ‖y − c_k‖² / (2 s₀²)): likelihoods per dimension, times β. They are the
    weights π_k(z_0) of the velocity mixture. A mode is a large, stable part of the normals: each has its own
    prototypes of patches and its own weights of the scores.

    Args:
        basis: P (d, p).
        center: c (K, p).
        share: π (K,).
        variance: s₀², ().
        mode_center: centres of the modes (J, p).
    """

    def __init__(self, basis: Tensor, center: Tensor, share: Tensor, variance: Tensor, mode_center: Tensor) -> None:
        super().__init__()
        self.basis = nn.Buffer(basis)
        self.center = nn.Buffer(center)
        self.share = nn.Buffer(share)
        self.variance = nn.Buffer(variance)
        self.mode_center = nn.Buffer(mode_center)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Group weights p_k(z) (B, K) and the mode (B,), that of the nearest centre, of z (B, d)."""
        y = z @ self.basis
        tempered = SHARPNESS / y.shape[1] * squared_distances(y, self.center) / (2 * self.variance)
        return (self.share.log() - tempered).softmax(1), squared_distances(y, self.mode_center).argmin(1)


def squared_distances(x: Tensor, points: Tensor) -> Tensor:
    """‖x − points_k‖²: (B, d) and (K, d) → (B, K)."""
    squares = x.square().sum(1, keepdim=True) - 2 * x @ points.T + points.square().sum(1)
    return squares.clamp_min(0)


@dataclass(frozen=True)
class Partition:
    """The partition of n normals into groups and modes, from which each round makes its own ``Groups``.

    Args:
        basis: P (d, p).
        y: principal components of the normals (n, p).
        group: of each normal (n,), 0 … K − 1.
        mode: of each normal (n,), 0 … J − 1.
        modes_tried: one row for each number of modes that was tried.
    """

    basis: np.ndarray
    y: np.ndarray
    group: np.ndarray
    mode: np.ndarray
    modes_tried: list[dict[str, float]]

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
        center, share = means_of(y, group, self.n_groups), np.bincount(group, minlength=self.n_groups) / len(y)
        variance = np.square(y - center[group]).mean()
        arrays = (
            self.basis,
            center,
            np.maximum(share, NO_SHARE),
            np.maximum(variance, 1e-12),
            means_of(y, self.mode[kept], self.n_modes),
        )
        return Groups(*(torch.tensor(array, dtype=torch.float) for array in arrays))


def fit_partition(
    z: np.ndarray, fold: np.ndarray, n_groups: int, max_modes: int, min_mode_size: int, seed: int
) -> Partition:
    """K-means++ on the principal components of standardised normals (n, d) with folds (n,)."""
    size = min(COMPONENTS, *z.shape)
    basis = PCA(size, svd_solver="randomized", random_state=seed).fit(z).components_.T
    y = z @ basis
    allowed = max(1, len(z) // NORMALS_PER_GROUP)
    if n_groups > allowed:
        logger.info("%d groups are too many for %d normals: %d are used", n_groups, len(z), allowed)
    mode, tried = choose_partition(y, fold, max_modes, min_mode_size, seed)
    return Partition(basis, y, cluster(y, min(n_groups, allowed), seed), mode, tried)


def cluster(x: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Labels of K-means++, (n,); clusters that repeated images leave empty are dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        labels = KMeans(number, n_init=1, random_state=seed).fit_predict(x)
    return np.unique(labels, return_inverse=True)[1]


def means_of(x: np.ndarray, label: np.ndarray, number: int) -> np.ndarray:
    """The mean of each of some groups of rows, (n, d) and labels (n,) → (number, d); of all rows for an empty group."""
    size = np.bincount(label, minlength=number)
    member = np.zeros((number, len(x)), dtype=x.dtype)
    member[label, np.arange(len(x))] = 1 / size[label]
    means = member @ x
    means[size == 0] = x.mean(0)
    return means
