"""What references learn of z (n, d): arrays that score new z, higher for anomalies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from scipy.linalg import solve_triangular
from sklearn import linear_model
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from mpfm_kedro.detectors.mpfm.whitening import Spectrum

NEIGHBOURS = 5


@dataclass(frozen=True)
class Arrays:
    """A dataclass whose fields are all arrays."""

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Its fields as ``prefix.field``, to be stored."""
        return {f"{prefix}.{name}": torch.from_numpy(np.ascontiguousarray(value)) for name, value in vars(self).items()}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of ``tensors``, from names without prefix."""
        return cls(**{field.name: tensors[field.name].cpu().numpy().copy() for field in fields(cls)})


class Estimator(Arrays, ABC):
    """Something learned that scores z."""

    @abstractmethod
    def scores(self, z: np.ndarray) -> np.ndarray:
        """(n, d) → (n,)."""


@dataclass(frozen=True)
class Standardiser(Arrays):
    """(x − centre) / spread, each (d,)."""

    center: np.ndarray
    spread: np.ndarray

    @classmethod
    def fit(cls, pooled: np.ndarray) -> Self:
        """Mean and standard deviation of the columns of (n, d), in its precision; constant columns have spread 1."""
        scaler = StandardScaler().fit(pooled)
        return cls(scaler.mean_.astype(pooled.dtype), scaler.scale_.astype(pooled.dtype))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d) → (n, d)."""
        return (x - self.center) / self.spread


@dataclass(frozen=True)
class Gaussian(Estimator):
    """N(m, Σ) with Σ = L Lᵀ, the Ledoit-Wolf covariance; the score is the distance ‖L^{-1} (z − m)‖.

    Args:
        mean: m (d,).
        cholesky: L (d, d).
    """

    mean: np.ndarray
    cholesky: np.ndarray

    @classmethod
    def fit(cls, z: np.ndarray) -> Self:
        """In double precision."""
        z = z.astype(np.float64)
        covariance, _ = ledoit_wolf(z)
        covariance.flat[:: len(covariance) + 1] += 1e-9  # identical normals have no covariance
        return cls(z.mean(0), np.linalg.cholesky(covariance))

    def scores(self, z: np.ndarray) -> np.ndarray:
        """The distance."""
        return np.linalg.norm(solve_triangular(self.cholesky, (z - self.mean).T, lower=True), axis=0)


@dataclass(frozen=True)
class ModeMixture(Estimator):
    """Modes j of the normals with their own covariances; the score is −log Σ_j ω_j N(z; m_j, Σ_j) up to a constant.

    Args:
        log_weight: log ω (J,).
        mean: m (J, d).
        basis: eigenvectors of all modes side by side, (d, Σ r_j).
        variance: their eigenvalues (Σ r_j,).
        rank: r (J,).
        shrinkage: which of ``SHRINKAGES`` each mode has, (J,).
    """

    log_weight: np.ndarray
    mean: np.ndarray
    basis: np.ndarray
    variance: np.ndarray
    rank: np.ndarray
    shrinkage: np.ndarray

    @classmethod
    def of(cls, log_weight: np.ndarray, spectra: Sequence[Spectrum], shrinkage: Sequence[int]) -> Self:
        """Of the spectrum of each mode."""
        return cls(
            log_weight,
            np.stack([spectrum.mean for spectrum in spectra]),
            np.concatenate([spectrum.basis for spectrum in spectra], axis=1),
            np.concatenate([spectrum.variance for spectrum in spectra]),
            np.array([len(spectrum.variance) for spectrum in spectra]),
            np.array(shrinkage),
        )

    def scores(self, z: np.ndarray) -> np.ndarray:
        """The negative log-likelihood."""
        z = z.astype(np.float64)
        ends = self.rank.cumsum()[:-1]
        bases = (np.ascontiguousarray(basis) for basis in np.split(self.basis, ends, axis=1))
        spectra = map(Spectrum, self.mean, bases, np.split(self.variance, ends))
        joint = [
            log_weight + spectrum.log_likelihoods(z)[:, choice]
            for log_weight, spectrum, choice in zip(self.log_weight, spectra, self.shrinkage, strict=True)
        ]
        return -np.logaddexp.reduce(joint, axis=0)


@dataclass(frozen=True)
class Neighbours(Estimator):
    """The normals themselves, (n, d); the score is the mean distance to the nearest five."""

    normals: np.ndarray

    def scores(self, z: np.ndarray) -> np.ndarray:
        """The mean distance."""
        number = min(NEIGHBOURS, len(self.normals))
        search = NearestNeighbors(n_neighbors=number, algorithm="brute", n_jobs=1).fit(self.normals)
        return search.kneighbors(z)[0].mean(1)


@dataclass(frozen=True)
class LogisticModel(Estimator):
    """The score is the logit w · z + b.

    Args:
        weight: w (1, d).
        bias: b (1,).
    """

    weight: np.ndarray
    bias: np.ndarray

    @classmethod
    def fit(cls, normals: np.ndarray, anomalies: np.ndarray) -> Self:
        """Minimise the log-loss of anomalies (M, d) against normals (n, d) plus ‖w‖² / (2C), C = 1e-3."""
        label = np.repeat([0, 1], [len(normals), len(anomalies)])
        model = linear_model.LogisticRegression(C=1e-3, max_iter=2000)
        model.fit(np.concatenate([normals, anomalies]), label)
        return cls(np.ascontiguousarray(model.coef_), model.intercept_)

    def scores(self, z: np.ndarray) -> np.ndarray:
        """The logit."""
        return (z @ self.weight.T + self.bias)[:, 0]
