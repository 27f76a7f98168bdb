"""Fitting the modes of the normals: how many, where, and how much their covariances are shrunk.

How many: as many groups as two halves of the normals agree about. How much shrinkage: what normals that were not
fitted find most likely, for each mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from mpfm_kedro.detectors.mpfm.modes import Modes

SHRINKAGES = np.geomspace(0.003, 0.9, 14)
FOLDS = 5
STABLE = 0.95
MIN_UNSEEN = 10  # normals; fewer cannot tell whether two partitions agree
STABILITY_DRAWS = 4
MIN_VARIANCE_SHARE = 0.02


@dataclass(frozen=True)
class Spectrum:
    """Mean, eigenvectors (d, r) and eigenvalues (r,) of the covariance of one mode's normals."""

    mean: np.ndarray
    basis: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> Spectrum:
        """Of the rows of z (n, d); by the smaller of covariance and Gram matrix."""
        n, d = z.shape
        z = z.astype(np.float64)  # in single precision null directions survive the threshold below
        mean = z.mean(0)
        offset = z - mean
        if n > d:
            variance, basis = np.linalg.eigh(offset.T @ offset / n)
        else:
            variance, left = np.linalg.eigh(offset @ offset.T / n)
            keep = variance > variance[-1] * 1e-9
            variance, left = variance[keep], left[:, keep]
            basis = offset.T @ left / np.sqrt(n * variance)
        return cls(mean, basis, np.maximum(variance, 0))

    def log_likelihoods(self, z: np.ndarray) -> np.ndarray:
        """Log N(z; mean, shrunk covariance) up to a constant, (n, d) → (n, shrinkages); only rescaled for each."""
        offset = z - self.mean
        inside = np.square(offset @ self.basis)
        outside = np.maximum(np.square(offset).sum(1) - inside.sum(1), 0)
        columns = []
        for shrinkage in SHRINKAGES:
            variance, level = self.shrunk(shrinkage)
            volume = np.log(variance).sum() + (z.shape[1] - len(variance)) * np.log(level)
            columns.append(-0.5 * (inside @ (1 / variance) + outside / level + volume))
        return np.stack(columns, axis=1)

    def shrunk(self, shrinkage: float) -> tuple[np.ndarray, float]:
        """Eigenvalues of (1−α) S + α (tr S / d) I: inside the basis, and outside of it."""
        level = shrinkage * max(self.variance.sum() / len(self.mean), 1e-6)
        return (1 - shrinkage) * self.variance + level, level


def choose_partition(
    z: np.ndarray, fold: np.ndarray, max_modes: int, min_mode_size: int, seed: int
) -> tuple[np.ndarray, list[dict[str, float]]]:
    """The mode of each normal of z (n, d) with folds (n,), as labels (n,), and a row for each number of modes tried.

    The largest number of modes is taken whose partition is stable; a group that is too small, or has next to no
    variance (constant images), is no mode.
    """
    labels = np.zeros(len(z), dtype=int)
    tried = [{"n_modes": 1, "stability": 1.0}]
    learned, unseen = z[fold != 0], z[fold == 0]
    if len(unseen) < MIN_UNSEEN:
        max_modes = 1
    for n_modes in range(2, min(max_modes, len(learned) // min_mode_size) + 1):
        candidate = KMeans(n_modes, n_init=4, random_state=seed).fit_predict(z)
        if _are_modes(z, candidate, min_mode_size):
            agreement = stability(learned, unseen, n_modes, seed)
            tried.append({"n_modes": n_modes, "stability": agreement})
            labels = candidate if agreement >= STABLE else labels
    return labels, tried


def stability(z: np.ndarray, unseen: np.ndarray, n_modes: int, seed: int) -> float:
    """How far partitions learned from two halves of z agree on unseen normals: mean adjusted Rand index."""
    rng = np.random.default_rng(seed)
    agreements = []
    for _ in range(STABILITY_DRAWS):
        halves = np.array_split(rng.permutation(len(z)), 2)
        first, second = (KMeans(n_modes, n_init=4, random_state=seed).fit(z[half]) for half in halves)
        agreements.append(adjusted_rand_score(first.predict(unseen), second.predict(unseen)))
    return float(np.mean(agreements))


def _are_modes(z: np.ndarray, labels: np.ndarray, min_mode_size: int) -> bool:
    """Whether every group is large enough and varies."""
    groups = [z[labels == j] for j in range(labels.max() + 1)]
    varies = [group.var(0).mean() >= MIN_VARIANCE_SHARE * z.var(0).mean() for group in groups]
    return min(len(group) for group in groups) >= min_mode_size and all(varies)


def choose_shrinkage(likelihoods: list[np.ndarray], labels: list[np.ndarray], n_modes: int) -> np.ndarray:
    """The shrinkage of each mode (J,) that unseen normals of the mode find most likely.

    Args:
        likelihoods: of each fold's unseen normals under each mode and shrinkage, (n_f, J, shrinkages).
        labels: their modes (n_f,).
        n_modes: J.
    """
    table, label = np.concatenate(likelihoods), np.concatenate(labels)
    chosen = []
    for j in range(n_modes):
        own = label == j if (label == j).any() else np.ones(len(label), dtype=bool)
        chosen.append(SHRINKAGES[table[own, j].mean(0).argmax()])
    return np.array(chosen)


def folds(n: int, seed: int) -> np.ndarray:
    """A random fold for each of n samples."""
    return np.random.default_rng(seed).permutation(np.arange(n) % min(FOLDS, n))


def spectra_of(z: np.ndarray, labels: np.ndarray, n_modes: int) -> list[Spectrum]:
    """The spectrum of each mode; of all normals where a mode has fewer than two."""
    groups = [z[labels == j] for j in range(n_modes)]
    return [Spectrum.of(group if len(group) > 1 else z) for group in groups]


def log_likelihoods(spectra: list[Spectrum], z: np.ndarray) -> np.ndarray:
    """log N(z; m_j, Σ_j) of each mode at each shrinkage, (n, d) → (n, J, shrinkages)."""
    return np.stack([spectrum.log_likelihoods(z) for spectrum in spectra], axis=1)


def build_modes(spectra: list[Spectrum], z: np.ndarray, labels: np.ndarray, shrinkage: np.ndarray) -> Modes:
    """Modes of a partition of z (n, d) with their shrinkage (J,)."""
    weight = np.maximum(np.bincount(labels, minlength=len(spectra)), 1) / len(labels)
    return _build(spectra, weight / weight.sum(), shrinkage, _target_means(spectra, weight, z, labels, shrinkage))


def _target_means(
    spectra: list[Spectrum], weight: np.ndarray, z: np.ndarray, labels: np.ndarray, shrinkage: np.ndarray
) -> np.ndarray:
    """τ_j: the means under the whitening by the pooled covariance within modes, (J, d)."""
    means = np.stack([spectrum.mean for spectrum in spectra])
    offset = means - weight @ means
    if len(spectra) == 1:
        return offset
    pooled = Spectrum.of(z - means[labels])
    variance, level = pooled.shrunk(float(weight @ shrinkage))
    inside = offset @ pooled.basis
    return offset / np.sqrt(level) + (inside * (variance**-0.5 - level**-0.5)) @ pooled.basis.T


def _build(spectra: list[Spectrum], weight: np.ndarray, shrinkage: np.ndarray, target_mean: np.ndarray) -> Modes:
    rank = max(spectrum.basis.shape[1] for spectrum in spectra)
    d = len(spectra[0].mean)
    basis = np.zeros((len(spectra), d, rank))
    variance = np.zeros((len(spectra), rank))
    residual_variance = np.zeros(len(spectra))
    for j, spectrum in enumerate(spectra):
        values, residual_variance[j] = spectrum.shrunk(float(shrinkage[j]))
        basis[j, :, : len(values)] = spectrum.basis
        variance[j] = residual_variance[j]
        variance[j, : len(values)] = values
    mean = np.stack([spectrum.mean for spectrum in spectra])
    return Modes(
        *(torch.from_numpy(array) for array in (weight, mean, basis, variance, residual_variance, target_mean))
    )
