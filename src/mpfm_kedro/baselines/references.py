"""References on pooled statistics, solved in closed form or as a convex problem.

All read z, the pooled statistics standardised on the training normals, (n, d).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from scipy.linalg import solve_triangular
from sklearn import linear_model
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from mpfm_kedro.baselines.method import Method, TrainingData
from mpfm_kedro.model.feature_rows import FeatureRows
from mpfm_kedro.model.mode_fitting import SHRINKAGES, Spectrum, fit_modes, folds

HELD_OUT_SHARE = 0.2
MAX_MODES = 4
MIN_MODE_SIZE = 50


class Mahalanobis(Method):
    """((z − m)ᵀ Σ^{-1} (z − m))^½ with the Ledoit-Wolf covariance Σ of all training normals."""

    name: ClassVar[str] = "Mahalanobis"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = False
    budget: ClassVar[str] = "closed form: Ledoit-Wolf covariance of the normals"
    seconds: ClassVar[float] = 2

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Mean and covariance of the normals."""
        self._scaler = StandardScaler().fit(data.normals.pooled)
        self._gaussian = Gaussian(self._scaler.transform(data.normals.pooled))

    def score(self, rows: FeatureRows) -> np.ndarray:
        """The distance, (n,)."""
        return self._gaussian.distance(self._scaler.transform(rows.pooled))


class Gaussian:
    """N(m, Σ) with Σ = L Lᵀ, the Ledoit-Wolf covariance of z (n, d)."""

    def __init__(self, z: np.ndarray) -> None:
        z = z.astype(np.float64)
        self.mean = z.mean(0)
        covariance, _ = ledoit_wolf(z)
        covariance.flat[:: len(covariance) + 1] += 1e-9  # normals that are all the same have no covariance
        self.cholesky = np.linalg.cholesky(covariance)

    def distance(self, z: np.ndarray) -> np.ndarray:
        """‖L^{-1} (z − m)‖: (n, d) → (n,)."""
        return np.linalg.norm(solve_triangular(self.cholesky, (z - self.mean).T, lower=True), axis=0)


class MixtureOfModes(Method):
    """−log Σ_j ω_j N(z; m_j, Σ_j): up to four modes of the normals, each with its own shrunk covariance.

    A share of the normals is not fitted at first and decides, with the others, how many modes are stable and how much
    each is shrunk; then each of it joins its most probable mode and their covariances are those of all normals.
    """

    name: ClassVar[str] = "mixture of modes"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "closed form: K-means partition, covariances shrunk as held-out normals like it"
    seconds: ClassVar[float] = 6

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Partition, shrinkage and covariances."""
        n = len(data.normals)
        held_out = np.zeros(n, dtype=bool)
        held_out[np.random.default_rng(seed).permutation(n)[: max(1, round(HELD_OUT_SHARE * n))]] = True
        self._scaler = StandardScaler().fit(data.normals.pooled)
        z = self._scaler.transform(data.normals.pooled)
        fitted, _ = fit_modes(z[~held_out], z[held_out], MAX_MODES, MIN_MODE_SIZE, seed)
        label = np.empty(n, dtype=int)
        label[~held_out] = fitted.labels
        label[held_out] = fitted.modes.posterior(torch.from_numpy(z[held_out]).float()).argmax(1).numpy()
        self._log_weight = np.log(np.bincount(label) / n)
        self._spectra = [Spectrum.of(z[label == j]) for j in range(fitted.modes.n_modes)]
        self._choice = [int(np.abs(SHRINKAGES - shrinkage).argmin()) for shrinkage in fitted.shrinkage]

    def score(self, rows: FeatureRows) -> np.ndarray:
        """The negative log-likelihood up to a constant, (n,)."""
        z = self._scaler.transform(rows.pooled).astype(np.float64)
        modes = zip(self._log_weight, self._spectra, self._choice, strict=True)
        joint = [log_weight + spectrum.log_likelihoods(z)[:, choice] for log_weight, spectrum, choice in modes]
        return -np.logaddexp.reduce(joint, axis=0)


class NearestNormals(Method):
    """Mean distance of z to the five nearest normals."""

    name: ClassVar[str] = "kNN-5"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = False
    budget: ClassVar[str] = "nothing is fitted: all normals are kept"
    seconds: ClassVar[float] = 1

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Keep the normals."""
        self._scaler = StandardScaler().fit(data.normals.pooled)
        self._neighbours = NearestNeighbors(n_neighbors=min(5, len(data.normals)), algorithm="brute", n_jobs=1)
        self._neighbours.fit(self._scaler.transform(data.normals.pooled))

    def score(self, rows: FeatureRows) -> np.ndarray:
        """The mean distance, (n,)."""
        return self._neighbours.kneighbors(self._scaler.transform(rows.pooled))[0].mean(1)


class LogisticRegression(Method):
    """wᵀz + b: the known anomalies as they are against all normals, L2 penalty ‖w‖² / (2C), C = 1e-3."""

    name: ClassVar[str] = "logistic regression"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = False
    budget: ClassVar[str] = "convex problem, solved to convergence (L-BFGS)"
    seconds: ClassVar[float] = 2

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Minimise the penalised log-loss."""
        self._scaler = StandardScaler().fit(data.normals.pooled)
        self._classifier = separate(*(self._scaler.transform(rows.pooled) for rows in (data.normals, data.known)))

    def score(self, rows: FeatureRows) -> np.ndarray:
        """The logit, (n,)."""
        return self._classifier.decision_function(self._scaler.transform(rows.pooled))


def separate(normals: np.ndarray, anomalies: np.ndarray) -> linear_model.LogisticRegression:
    """The logistic regression of anomalies (M, d) against normals (n, d)."""
    label = np.repeat([0, 1], [len(normals), len(anomalies)])
    return linear_model.LogisticRegression(C=1e-3, max_iter=2000).fit(np.concatenate([normals, anomalies]), label)


class LogisticRegressionAndMahalanobis(Method):
    """(logit − a) / b + (distance − a') / b': centre and spread from normals that the score was not fitted to.

    In-sample distances are far too small where there are fewer normals than dimensions, so each of the folds of the
    normals is scored by fits to the other folds.
    """

    name: ClassVar[str] = "logistic regression + Mahalanobis"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "both parts solved as above, five more times for the standardisation"
    seconds: ClassVar[float] = 12

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Both parts on everything, their centre and spread by cross-fitting."""
        self._scaler = StandardScaler().fit(data.normals.pooled)
        normals, anomalies = (self._scaler.transform(rows.pooled) for rows in (data.normals, data.known))
        fold, unseen = folds(len(normals), seed), np.empty((len(normals), 2))
        for number in range(int(fold.max()) + 1):
            own = fold == number
            unseen[own] = Parts(normals[~own], anomalies).scores(normals[own])
        self._center, self._spread = unseen.mean(0), np.maximum(unseen.std(0), 1e-12)
        self._parts = Parts(normals, anomalies)

    def score(self, rows: FeatureRows) -> np.ndarray:
        """The standardised sum, (n,)."""
        return ((self._parts.scores(self._scaler.transform(rows.pooled)) - self._center) / self._spread).sum(1)


class Parts:
    """Logistic regression and Gaussian of the same normals (n, d)."""

    def __init__(self, normals: np.ndarray, anomalies: np.ndarray) -> None:
        self.classifier = separate(normals, anomalies)
        self.gaussian = Gaussian(normals)

    def scores(self, z: np.ndarray) -> np.ndarray:
        """Logit and distance: (n, d) → (n, 2)."""
        return np.stack([self.classifier.decision_function(z), self.gaussian.distance(z)], axis=1)
