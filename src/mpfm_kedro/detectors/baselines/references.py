"""References, solved in closed form or as a convex problem.

All but patch-kNN read z, the pooled statistics standardised on the training normals, (n, d).
"""

import math
from abc import abstractmethod
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn import linear_model
from sklearn.covariance import empirical_covariance, ledoit_wolf, shrunk_covariance
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Baseline, Context, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput, center_and_spread, one_if_constant
from mpfm_kedro.detectors.mpfm.groups import choose_modes
from mpfm_kedro.detectors.mpfm.patches import k_centre, to_patches
from mpfm_kedro.detectors.mpfm.rounds import assign_folds
from mpfm_kedro.detectors.mpfm.whitening import SHRINKAGES, Spectrum

MAX_MODES = 4
MIN_MODE_SIZE = 50
FOLDS = 5
NEIGHBOURS = 5
PENALTY = 1e-3  # C of the logistic regression
PATCH_CANDIDATES = 20000
CORESET = 2000
PROJECTED = 64


class PooledDetector(Baseline):
    """A standardiser and scores of z; what is learned is in buffers."""

    supervised = False
    random = False
    reads = ("pooled",)

    standardise: StandardisedInput

    @abstractmethod
    def learn(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        """Learn from z of the normals (n, d) and of the original known anomalies (M, d)."""

    @abstractmethod
    def score(self, z: Tensor) -> Tensor:
        """(B, d) → (B,)."""

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, d) → (B,)."""
        return self.score(self.standardise(pooled))

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Standardise on the normals, then learn."""
        center, spread = center_and_spread("pooled", data.normals)
        self.standardise = StandardisedInput("pooled", center, one_if_constant(spread))
        normals, known = (
            self.standardise(torch.from_numpy(rows.pooled)).numpy() for rows in (data.normals, data.known)
        )
        self.learn(normals, known, seed)
        return self.to(context.device)

    def keep(self, **learned: ArrayLike) -> None:
        """Set what was learned as buffers."""
        for name, values in learned.items():
            setattr(self, name, nn.Buffer(torch.from_numpy(np.ascontiguousarray(values))))


class Mahalanobis(PooledDetector):
    """((z − m)ᵀ Σ^{-1} (z − m))^½ with the Ledoit-Wolf covariance Σ = L Lᵀ of all training normals."""

    name = "Mahalanobis"
    budget = "closed form: Ledoit-Wolf covariance of the normals"

    mean: Tensor  # m (d,)
    cholesky: Tensor  # L (d, d)

    def learn(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        """Mean and covariance of the normals, in double precision."""
        z = normals.astype(np.float64)
        self.keep(mean=z.mean(0), cholesky=cholesky(ledoit_wolf(z)[0]))

    def score(self, z: Tensor) -> Tensor:
        """The distance ‖L^{-1} (z − m)‖."""
        return torch.linalg.solve_triangular(self.cholesky, (z - self.mean).T, upper=False).norm(dim=0)


class MixtureOfModes(PooledDetector):
    """−log Σ_j ω_j N(z; m_j, Σ_j): up to four modes of the normals, each with its own shrunk covariance.

    A fifth of the normals decides with the others how many modes are stable, and how much the covariance of each is
    shrunk. The covariances are those of all normals.
    """

    name = "mixture of modes"
    random = True
    budget = "closed form: K-means partition, shrinkage by the likelihood of held-out normals"

    share: Tensor  # ω (J,)
    mean: Tensor  # m (J, d)
    cholesky: Tensor  # L_j of Σ_j = L_j L_jᵀ, (J, d, d)

    def learn(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        """Partition, shrinkage and covariances, in double precision."""
        fold = assign_folds(np.arange(len(normals)), FOLDS, seed)
        label, _ = choose_modes(normals, fold, MAX_MODES, MIN_MODE_SIZE, seed)
        members = [(normals[mode].astype(np.float64), fold[mode] == 0) for mode in _groups(label)]
        factors = []
        for z, held_out in members:
            alpha = choose_shrinkage(z[~held_out], z[held_out] if held_out.any() else normals[fold == 0])
            factors.append(cholesky(shrunk_covariance(empirical_covariance(z), alpha)))
        self.keep(
            share=np.bincount(label) / len(label),
            mean=[z.mean(0) for z, _ in members],
            cholesky=factors,
        )

    def score(self, z: Tensor) -> Tensor:
        """The negative log-likelihood up to a constant."""
        modes = MultivariateNormal(self.mean, scale_tril=self.cholesky, validate_args=False)
        mixture = MixtureSameFamily(Categorical(self.share), modes, validate_args=False)
        return -mixture.log_prob(z.double()) - z.shape[1] / 2 * math.log(2 * math.pi)


class NearestNormals(PooledDetector):
    """Mean distance of z to the five nearest normals."""

    name = "kNN-5"
    budget = "nothing is fitted: all normals are kept"

    normals: Tensor  # (n, d)

    def learn(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        """Keep the normals."""
        self.keep(normals=normals)

    def score(self, z: Tensor) -> Tensor:
        """The mean distance."""
        distance = torch.cdist(z.double(), self.normals.double())
        return distance.topk(min(NEIGHBOURS, len(self.normals)), largest=False).values.mean(1)


class PatchNeighbours(Baseline):
    """max over positions of the distance to the nearest patch of the coreset.

    Patches are positions of the maps averaged with their neighbours, standardised by channel on the normals. The
    coreset is a greedy k-centre selection on a random projection, among patches drawn evenly from all normals.
    """

    name = "patch-kNN"
    supervised = False
    random = True
    budget = "nothing is fitted: 2,000 patches of the normals are kept"

    standardise: StandardisedInput
    coreset: Tensor  # (k, C)

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Select the coreset."""
        patches = self._draw(data.normals, np.random.default_rng(seed)).to(context.device)
        spread = one_if_constant(patches.std(0, correction=0))
        self.standardise = StandardisedInput("maps", patches.mean(0), spread)
        patches = self.standardise(patches)
        generator = torch.Generator().manual_seed(seed)
        projected = patches @ torch.randn(patches.shape[1], PROJECTED, generator=generator).to(context.device)
        first = projected[(projected - projected.mean(0)).square().sum(1).argmax()]
        self.coreset = nn.Buffer(patches[k_centre(projected - first, CORESET)])  # it begins nearest to zero
        return self

    def forward(self, maps: Tensor) -> Tensor:
        """The largest distance in each image, (B, C, H', W') → (B,)."""
        patches = self.standardise(to_patches(maps).mT).flatten(0, -2)
        return torch.cdist(patches, self.coreset).amin(1).view(len(maps), -1).amax(1)

    def bytes_per_image(self, rows: FeatureRows) -> int:
        """The table of distances, (H' · W', k)."""
        return math.prod(rows.maps.shape[2:]) * CORESET * torch.float.itemsize

    def _draw(self, rows: FeatureRows, rng: np.random.Generator) -> Tensor:
        """About as many patches from each image, ``PATCH_CANDIDATES`` or a few more at most, (n, C)."""
        positions = math.prod(rows.maps.shape[2:])
        per_image = min(positions, -(-PATCH_CANDIDATES // len(rows)))
        drawn = []
        for part in rows.slices(bytes_per_image=self.bytes_per_image(rows)):
            patches = to_patches(rows.map_batch(part))
            index = rng.permuted(np.tile(np.arange(positions), (len(patches), 1)), axis=1)[:, :per_image]
            drawn.append(patches[torch.arange(len(patches))[:, None], torch.from_numpy(index)].flatten(0, 1))
        return torch.cat(drawn)


class LogisticRegression(PooledDetector):
    """w · z + b: the original known anomalies against all normals, L2 penalty ‖w‖² / (2C), C = 1e-3."""

    name = "logistic regression"
    supervised = True
    budget = "convex problem, solved to convergence (L-BFGS)"

    weight: Tensor  # w (1, d)
    bias: Tensor  # b (1,)

    def learn(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        """Minimise the penalised log-loss."""
        label = np.repeat([0, 1], [len(normals), len(known)])
        model = linear_model.LogisticRegression(C=PENALTY, max_iter=2000)
        model.fit(np.concatenate([normals, known]), label)
        self.keep(weight=model.coef_, bias=model.intercept_)

    def score(self, z: Tensor) -> Tensor:
        """The logit."""
        return nn.functional.linear(z, self.weight, self.bias)[:, 0]


class LogisticRegressionAndMahalanobis(PooledDetector):
    """(logit − a) / b + (distance − a') / b': centre and spread from normals that the score was not fitted to.

    In-sample distances are far too small where there are fewer normals than dimensions, so each of the folds of the
    normals is scored by fits to the other folds.
    """

    name = "logistic regression + Mahalanobis"
    supervised = True
    random = True
    budget = "both parts solved as above, five more times for the standardisation"

    center: Tensor  # a and a', (2,)
    spread: Tensor  # b and b', (2,)

    def __init__(self, steps: int = 1000) -> None:
        super().__init__(steps)
        self.logit, self.distance = LogisticRegression(), Mahalanobis()

    def learn(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        """Both parts on all normals, their centre and spread by cross-fitting."""
        fold, held_out = assign_folds(np.arange(len(normals)), FOLDS, seed), np.empty((len(normals), 2))
        for excluded in _groups(fold):
            self._learn_parts(normals[~excluded], known, seed)
            held_out[excluded] = self._parts(torch.from_numpy(normals[excluded])).numpy()
        self._learn_parts(normals, known, seed)
        self.keep(center=held_out.mean(0), spread=held_out.std(0).clip(1e-12))

    def score(self, z: Tensor) -> Tensor:
        """The standardised sum."""
        return ((self._parts(z) - self.center) / self.spread).sum(1)

    def _learn_parts(self, normals: np.ndarray, known: np.ndarray, seed: int) -> None:
        for part in (self.logit, self.distance):
            part.learn(normals, known, seed)

    def _parts(self, z: Tensor) -> Tensor:
        """Logit and distance: (B, d) → (B, 2)."""
        return torch.stack([self.logit.score(z).double(), self.distance.score(z)], dim=1)


def choose_shrinkage(z: np.ndarray, held_out: np.ndarray) -> float:
    """The shrinkage of the covariance of z (n, d) that held-out normals of the same mode (m, d) find most likely."""
    return float(SHRINKAGES[Spectrum.of(z).log_likelihoods(held_out).mean(0).argmax()])


def cholesky(covariance: np.ndarray) -> np.ndarray:
    """L of Σ = L Lᵀ, (d, d); identical normals have no covariance, so it is raised a little."""
    return np.linalg.cholesky(covariance + 1e-9 * np.eye(len(covariance)))


def _groups(label: np.ndarray) -> list[np.ndarray]:
    """The members of each group, (n,) each, bool."""
    return [label == number for number in range(int(label.max()) + 1)]
