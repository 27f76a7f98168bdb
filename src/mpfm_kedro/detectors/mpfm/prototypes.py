"""K-means++ prototypes on the transported normals."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.modes import Modes

logger = logging.getLogger(__name__)


def fit_prototypes(psi: np.ndarray, modes: Modes, labels: np.ndarray, n_prototypes: int, seed: int) -> PrototypeMixture:
    """K-means++ on the transported normals of each mode: μ_k the centres, π_k the shares, s = 1.

    Each mode gets its share of the prototypes. s is the transport's own scale: the inertia of normals that the
    whitening was fitted to is far too small when N < d.
    """
    centers, shares, volumes = [], [], []
    for j, number in enumerate(_allot(_capped(n_prototypes, len(psi)), labels, modes.n_modes)):
        own = psi[labels == j]
        center, share, _ = _cluster(own, number, seed)
        centers.append(center)
        shares.append(share * len(own) / len(psi))
        volumes.append(modes.log_det[j].repeat(len(center)))
    return PrototypeMixture(_tensor(np.concatenate(centers)), _tensor(np.concatenate(shares)), 1.0, torch.cat(volumes))


def printed_prototypes(z: np.ndarray, n_prototypes: int, seed: int) -> PrototypeMixture:
    """The printed form: one K-means++ on z, s² = inertia / (d N)."""
    center, share, inertia = _cluster(z, _capped(n_prototypes, len(z)), seed)
    return PrototypeMixture(_tensor(center), _tensor(share), float(np.sqrt(max(inertia, 1e-12) / z.size)))


def _capped(n_prototypes: int, n_normals: int) -> int:
    if n_prototypes > n_normals:
        logger.info("%d prototypes for %d normals are too many: %d are used", n_prototypes, n_normals, n_normals)
    return min(n_prototypes, n_normals)


def _cluster(psi: np.ndarray, number: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Centres, shares and inertia of K-means++; clusters that repeated images leave empty are dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        means = KMeans(number, n_init=1, random_state=seed).fit(psi)
    size = np.bincount(means.labels_, minlength=number)
    return means.cluster_centers_[size > 0], size[size > 0] / len(psi), float(means.inertia_)


def _allot(n_prototypes: int, labels: np.ndarray, n_modes: int) -> list[int]:
    """Prototypes of each mode: in proportion to its normals, at least one, never more than it has."""
    size = np.bincount(labels, minlength=n_modes)
    wanted = np.maximum(1, np.floor(n_prototypes * size / len(labels))).astype(int)
    while wanted.sum() < n_prototypes and (wanted < size).any():
        wanted[np.argmax(np.where(wanted < size, size / wanted, -1))] += 1
    return np.minimum(wanted, size).tolist()


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array)).float()
