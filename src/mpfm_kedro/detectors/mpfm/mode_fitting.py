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
STABLE = 0.9
MIN_HELD_OUT = 10  # fewer cannot tell whether two partitions agree
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


@dataclass(frozen=True)
class FittedModes:
    """Modes with the partition that they were fitted to and the choices made."""

    modes: Modes
    labels: np.ndarray
    shrinkage: np.ndarray
    held_out_likelihood: float


def fit_modes(
    z: np.ndarray, held_out: np.ndarray, max_modes: int, min_mode_size: int, seed: int
) -> tuple[FittedModes, list[dict[str, float]]]:
    """The modes of normals z (n, d), shrunk as held-out normals (m, d) like it, and a row for each number tried.

    The largest number of modes is taken whose partition is stable; a group that is too small, or has next to no
    variance (constant images), is no mode.
    """
    fitted = _fit_partition(z, np.zeros(len(z), dtype=int), held_out)
    tried = [{"n_modes": 1, "stability": 1.0, "held_out_likelihood": fitted.held_out_likelihood}]
    if len(held_out) < MIN_HELD_OUT:
        max_modes = 1
    for n_modes in range(2, min(max_modes, len(z) // min_mode_size) + 1):
        labels = KMeans(n_modes, n_init=4, random_state=seed).fit_predict(z)
        if not _are_modes(z, labels, min_mode_size):
            continue
        agreement = stability(z, held_out, n_modes, seed)
        candidate = _fit_partition(z, labels, held_out)
        tried.append({"n_modes": n_modes, "stability": agreement, "held_out_likelihood": candidate.held_out_likelihood})
        if agreement >= STABLE:
            fitted = candidate
    return fitted, tried


def stability(z: np.ndarray, held_out: np.ndarray, n_modes: int, seed: int) -> float:
    """How far partitions learned from two halves of z agree on held-out normals: mean adjusted Rand index."""
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


def modes_without_fold(z: np.ndarray, fitted: FittedModes, fold: np.ndarray) -> list[Modes]:
    """For each fold the modes fitted without it: same partition, shrinkage and target means, other covariances."""
    result = []
    for number in range(int(fold.max()) + 1):
        kept = fold != number
        spectra = [
            _spectrum(z[kept & (fitted.labels == j)], z[fitted.labels == j]) for j in range(fitted.modes.n_modes)
        ]
        weight = fitted.modes.weight.numpy()
        result.append(_build(spectra, weight, fitted.shrinkage, fitted.modes.target_mean.numpy()))
    return result


def folds(n: int, seed: int) -> np.ndarray:
    """A random fold for each of n samples."""
    return np.random.default_rng(seed).permutation(np.arange(n) % min(FOLDS, n))


def _spectrum(part: np.ndarray, whole: np.ndarray) -> Spectrum:
    """The spectrum of a part of a mode, or of the whole where too little is left."""
    return Spectrum.of(part if len(part) > 1 else whole)


def _fit_partition(z: np.ndarray, labels: np.ndarray, held_out: np.ndarray) -> FittedModes:
    """Modes of a partition, each with the shrinkage that held-out normals near it like best."""
    weight = np.bincount(labels) / len(labels)
    spectra = [Spectrum.of(z[labels == j]) for j in range(len(weight))]
    nearest = np.argmin([np.square(held_out - spectrum.mean).sum(1) for spectrum in spectra], axis=0)
    joint, shrinkage = np.empty((len(held_out), len(weight))), np.empty(len(weight))
    for j, spectrum in enumerate(spectra):
        table = spectrum.log_likelihoods(held_out)
        own = table[nearest == j] if (nearest == j).any() else table
        choice = int(own.mean(0).argmax())
        shrinkage[j] = SHRINKAGES[choice]
        joint[:, j] = np.log(weight[j]) + table[:, choice]
    likelihood = np.logaddexp.reduce(joint, axis=1) / z.shape[1]
    modes = _build(spectra, weight, shrinkage, _target_means(spectra, weight, z, labels, shrinkage))
    return FittedModes(modes, labels, shrinkage, float(likelihood.mean()))


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
