"""References on pooled statistics, solved in closed form or as a convex problem.

All read z, the pooled statistics standardised on the training normals, (n, d).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, Detector, Scores, TrainingData
from mpfm_kedro.detectors.baselines.estimators import (
    Estimator,
    Gaussian,
    LogisticModel,
    ModeMixture,
    Neighbours,
    Standardiser,
)
from mpfm_kedro.detectors.mpfm.modes import choose_partition
from mpfm_kedro.detectors.mpfm.rounds import assign_folds
from mpfm_kedro.detectors.mpfm.whitening import SHRINKAGES, Spectrum
from mpfm_kedro.detectors.pieces import Piece

MAX_MODES = 4
MIN_MODE_SIZE = 50
FOLDS = 5


class PooledDetector(Detector):
    """A standardiser and an estimator on z.

    Class attributes:
        estimator_type: of the estimator.
    """

    estimator_type: ClassVar[type[Estimator]]

    standardise: Standardiser
    estimator: Estimator

    @abstractmethod
    def estimate(self, normals: np.ndarray, known: np.ndarray, seed: int) -> Estimator:
        """Learn from z of the normals (n, d) and of the original known anomalies (M, d)."""

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Standardise on the normals, then learn."""
        self.standardise = Standardiser.fit(data.normals.pooled)
        normals, known = (self.standardise(rows.pooled) for rows in (data.normals, data.known))
        self.estimator = self.estimate(normals, known, seed)
        return self

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The estimator's scores."""
        return Scores(self.estimator.scores(self.standardise(rows.pooled)))

    def state(self) -> Artefact:
        """All arrays."""
        return Artefact(self.standardise.tensors("standardiser") | self.estimator.tensors("estimator"))

    @classmethod
    def restore(cls, state: Artefact, device: torch.device) -> Self:
        """The inverse of ``state``; all is done on the CPU."""
        detector = cls()
        detector.standardise = Standardiser.restore(state.part("standardiser"))
        detector.estimator = cls.estimator_type.restore(state.part("estimator"))
        return detector


class Mahalanobis(PooledDetector):
    """((z − m)ᵀ Σ^{-1} (z − m))^½ with the Ledoit-Wolf covariance Σ of all training normals."""

    name: ClassVar[str] = "Mahalanobis"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = False
    budget: ClassVar[str] = "closed form: Ledoit-Wolf covariance of the normals"
    estimator_type: ClassVar[type[Estimator]] = Gaussian

    def estimate(self, normals: np.ndarray, known: np.ndarray, seed: int) -> Gaussian:
        """Mean and covariance of the normals."""
        return Gaussian.fit(normals)


class MixtureOfModes(PooledDetector):
    """−log Σ_j ω_j N(z; m_j, Σ_j): up to four modes of the normals, each with its own shrunk covariance.

    A fifth of the normals decides with the others how many modes are stable, and how much the covariance of each is
    shrunk. The covariances are those of all normals.
    """

    name: ClassVar[str] = "mixture of modes"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "closed form: K-means partition, shrinkage by the likelihood of held-out normals"
    estimator_type: ClassVar[type[Estimator]] = ModeMixture

    def estimate(self, normals: np.ndarray, known: np.ndarray, seed: int) -> ModeMixture:
        """Partition, shrinkage and covariances."""
        fold = assign_folds(len(normals), FOLDS, seed)
        unseen = fold == 0
        label, _ = choose_partition(normals, fold, MAX_MODES, MIN_MODE_SIZE, seed)
        n_modes = int(label.max()) + 1
        likelihoods = log_likelihoods(spectra_of(normals[~unseen], label[~unseen], n_modes), normals[unseen])
        shrinkage = choose_shrinkage([likelihoods], [label[unseen]], n_modes)
        chosen = [int(np.abs(SHRINKAGES - own).argmin()) for own in shrinkage]
        weight = np.bincount(label) / len(label)
        return ModeMixture.of(np.log(weight), spectra_of(normals, label, n_modes), chosen)


class NearestNormals(PooledDetector):
    """Mean distance of z to the five nearest normals."""

    name: ClassVar[str] = "kNN-5"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = False
    budget: ClassVar[str] = "nothing is fitted: all normals are kept"
    estimator_type: ClassVar[type[Estimator]] = Neighbours

    def estimate(self, normals: np.ndarray, known: np.ndarray, seed: int) -> Neighbours:
        """Keep the normals."""
        return Neighbours(normals)


class LogisticRegression(PooledDetector):
    """w · z + b: the original known anomalies against all normals, L2 penalty ‖w‖² / (2C), C = 1e-3."""

    name: ClassVar[str] = "logistic regression"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = False
    budget: ClassVar[str] = "convex problem, solved to convergence (L-BFGS)"
    estimator_type: ClassVar[type[Estimator]] = LogisticModel

    def estimate(self, normals: np.ndarray, known: np.ndarray, seed: int) -> LogisticModel:
        """Minimise the penalised log-loss."""
        return LogisticModel.fit(normals, known)


class LogisticRegressionAndMahalanobis(Detector):
    """(logit − a) / b + (distance − a') / b': centre and spread from normals that the score was not fitted to.

    In-sample distances are far too small where there are fewer normals than dimensions, so each of the folds of the
    normals is scored by fits to the other folds. The fit has two pieces; the first is that of Mahalanobis.
    """

    name: ClassVar[str] = "logistic regression + Mahalanobis"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "both parts solved as above, five more times for the standardisation"

    _distance: Mahalanobis
    _logit: LogisticModel
    _standardise_parts: Standardiser

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Both parts on all normals, their centre and spread by cross-fitting."""
        return self._fit_beside(Mahalanobis().fit(data, seed, context), data, seed)

    def _fit_beside(self, distance: Mahalanobis, data: TrainingData, seed: int) -> Self:
        normals, known = (distance.standardise(rows.pooled) for rows in (data.normals, data.known))
        fold, unseen = assign_folds(len(normals), FOLDS, seed), np.empty((len(normals), 2))
        for number in range(int(fold.max()) + 1):
            own = fold == number
            logit, gaussian = LogisticModel.fit(normals[~own], known), Gaussian.fit(normals[~own])
            unseen[own] = _parts(logit, gaussian, normals[own])
        self._distance = distance
        self._logit = LogisticModel.fit(normals, known)
        self._standardise_parts = Standardiser(unseen.mean(0), np.maximum(unseen.std(0), 1e-12))
        return self

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The standardised sum."""
        parts = _parts(self._logit, self._distance.estimator, self._distance.standardise(rows.pooled))
        return Scores(self._standardise_parts(parts).sum(1))

    def state(self) -> Artefact:
        """Both pieces."""
        distance = {f"distance.{name}": value for name, value in self._distance.state().tensors.items()}
        return Artefact(self._own_state().tensors | distance)

    def _own_state(self) -> Artefact:
        return Artefact(self._logit.tensors("logit") | self._standardise_parts.tensors("parts"))

    @classmethod
    def restore(cls, state: Artefact, device: torch.device) -> Self:
        """The inverse of ``state``."""
        return cls._restore_beside(Mahalanobis.restore(Artefact(state.part("distance")), device), state)

    @classmethod
    def _restore_beside(cls, distance: Mahalanobis, own: Artefact) -> Self:
        detector = cls()
        detector._distance = distance
        detector._logit = LogisticModel.restore(own.part("logit"))
        detector._standardise_parts = Standardiser.restore(own.part("parts"))
        return detector

    @classmethod
    def pieces(cls, steps: int) -> tuple[Piece, ...]:
        """Mahalanobis' piece, shared with its trials, and classifier, centre and spread."""
        return (*Mahalanobis.pieces(steps), *super().pieces(steps))

    @classmethod
    def fit_piece(
        cls,
        data: TrainingData,
        earlier: Mapping[str, Artefact],
        parameters: Mapping[str, Any],
        seed: int,
        context: Context,
    ) -> Artefact:
        """Fit the second piece; the first is one of ``earlier``."""
        (distance,) = (Mahalanobis.restore(earlier[piece.name], context.device) for piece in Mahalanobis.pieces(0))
        return cls()._fit_beside(distance, data, seed)._own_state()

    @classmethod
    def load(cls, pieces: Mapping[str, Artefact], device: torch.device) -> Self:
        """The fitted detector from both pieces."""
        distance, own = (pieces[piece.name] for piece in cls.pieces(0))
        return cls._restore_beside(Mahalanobis.restore(distance, device), own)


def _parts(logit: Estimator, distance: Estimator, z: np.ndarray) -> np.ndarray:
    """Logit and distance: (n, d) → (n, 2)."""
    return np.stack([logit.scores(z), distance.scores(z)], axis=1)


def choose_shrinkage(likelihoods: list[np.ndarray], labels: list[np.ndarray], n_modes: int) -> np.ndarray:
    """The shrinkage of each mode (J,) that held-out normals of the mode find most likely.

    Args:
        likelihoods: of each fold's held-out normals under each mode and shrinkage, (n_f, J, shrinkages).
        labels: their modes (n_f,).
        n_modes: J.
    """
    table, label = np.concatenate(likelihoods), np.concatenate(labels)
    chosen = []
    for j in range(n_modes):
        own = label == j if (label == j).any() else np.ones(len(label), dtype=bool)
        chosen.append(SHRINKAGES[table[own, j].mean(0).argmax()])
    return np.array(chosen)


def spectra_of(z: np.ndarray, labels: np.ndarray, n_modes: int) -> list[Spectrum]:
    """The spectrum of each mode; of all normals where a mode has fewer than two."""
    groups = [z[labels == j] for j in range(n_modes)]
    return [Spectrum.of(group if len(group) > 1 else z) for group in groups]


def log_likelihoods(spectra: list[Spectrum], z: np.ndarray) -> np.ndarray:
    """log N(z; m_j, Σ_j) of each mode at each shrinkage, (n, d) → (n, J, shrinkages)."""
    return np.stack([spectrum.log_likelihoods(z) for spectrum in spectra], axis=1)
