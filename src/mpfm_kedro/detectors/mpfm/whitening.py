"""Standardisation and whitening: the linear part of the flow's start, shared by all groups."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.inputs import center_and_spread, one_if_constant
from mpfm_kedro.detectors.mpfm.tensors import TensorModule

SHRINKAGES = np.geomspace(0.003, 0.9, 14)
NULL = 1e-9  # eigenvalues below this share of the largest are rounding


class Standardiser(TensorModule):
    """z = (pooled − centre) / spread, and the same for each channel of the maps, over all positions."""

    pooled_center: Tensor  # (d,)
    pooled_spread: Tensor  # (d,)
    map_center: Tensor  # (C,)
    map_spread: Tensor  # (C,)

    @classmethod
    def fit(cls, normals: FeatureRows) -> Self:
        """Centre and spread of training normals."""
        tensors: dict[str, Tensor] = {}
        for name, kind in (("pooled", "pooled"), ("map", "maps")):
            center, spread = center_and_spread(kind, normals)
            tensors |= {f"{name}_center": center, f"{name}_spread": one_if_constant(spread)}
        return cls(**tensors)

    def z(self, pooled: Tensor) -> Tensor:
        """Standardised pooled statistics, (B, d) → (B, d)."""
        return (pooled - self.pooled_center) / self.pooled_spread

    def patches(self, maps: Tensor) -> Tensor:
        """Standardised patches, (B, C, H', W') → (B, X, C)."""
        return (maps.flatten(2).mT.float() - self.map_center) / self.map_spread

    def z_of(self, rows: FeatureRows) -> Tensor:
        """Standardised pooled statistics of stored features, (n, d)."""
        return self.z(torch.from_numpy(rows.pooled).to(self.pooled_center))


class Whitening(TensorModule):
    """x = A z with A = Σ^{-1/2}, Σ = U diag(λ) Uᵀ + ρ (I − U Uᵀ) the shrunk covariance within groups.

    The directions in which no normal varies are kept, with variance ρ: defects show there.
    """

    basis: Tensor  # U (d, r), orthonormal columns
    variance: Tensor  # λ (r,)
    level: Tensor  # ρ, ()

    def forward(self, z: Tensor) -> Tensor:
        """A z: (B, d) → (B, d)."""
        return self._scaled(z, self.variance.rsqrt(), self.level.rsqrt())

    def inverse(self, x: Tensor) -> Tensor:
        """A^{-1} x: (B, d) → (B, d)."""
        return self._scaled(x, self.variance.sqrt(), self.level.sqrt())

    def _scaled(self, x: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        return outside * x + (x @ self.basis * (inside - outside)) @ self.basis.T


def no_whitening(d: int) -> Whitening:
    """A = I: the printed form, prototypes on raw features."""
    return Whitening(basis=torch.zeros(d, 1), variance=torch.ones(1), level=torch.ones(()))


@dataclass(frozen=True)
class Spectrum:
    """Mean (d,), eigenvectors (d, r) and eigenvalues (r,) of the covariance of some rows."""

    mean: np.ndarray
    basis: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> Self:
        """Of the rows of z (n, d), by the smaller of covariance and Gram matrix."""
        n, d = z.shape
        z = z.astype(np.float64)  # in single precision null directions survive the threshold below
        mean = z.mean(0)
        offset = z - mean
        if n > d:
            variance, basis = np.linalg.eigh(offset.T @ offset / n)
            return cls(mean, basis, np.maximum(variance, 0))
        variance, left = np.linalg.eigh(offset @ offset.T / n)
        keep = variance > max(variance[-1], 1e-30) * NULL
        variance, left = variance[keep], left[:, keep]
        return cls(mean, offset.T @ (left / np.sqrt(n * variance)), variance)

    def shrunk(self, shrinkage: float) -> tuple[np.ndarray, float]:
        """Eigenvalues of (1−α) S + α (tr S / d) I: inside the basis, and outside of it."""
        level = shrinkage * max(self.variance.sum() / len(self.basis), 1e-6)
        return (1 - shrinkage) * self.variance + level, level

    def log_likelihoods(self, z: np.ndarray) -> np.ndarray:
        """Log N(z; mean, shrunk covariance) up to a constant, (n, d) → (n, shrinkages)."""
        offset = z - self.mean
        inside = np.square(offset @ self.basis)
        outside = np.maximum(np.square(offset).sum(1) - inside.sum(1), 0)
        columns = []
        for shrinkage in SHRINKAGES:
            variance, level = self.shrunk(shrinkage)
            volume = np.log(variance).sum() + (z.shape[1] - len(variance)) * np.log(level)
            columns.append(-0.5 * (inside @ (1 / variance) + outside / level + volume))
        return np.stack(columns, axis=1)

    def whitening(self, shrinkage: float) -> Whitening:
        """The whitening by the shrunk covariance."""
        variance, level = self.shrunk(shrinkage)
        arrays = {"basis": self.basis, "variance": variance, "level": level}
        return Whitening(**{name: torch.as_tensor(array, dtype=torch.float) for name, array in arrays.items()})
