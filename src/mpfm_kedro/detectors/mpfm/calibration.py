"""From scores of different scale to one: each becomes −log of its p-value among held-out normals like the image.

A score is standardised within the mode of the image, then within its groups, softly; its tail says how rare it is. The
sum S = w_g S_g + w_a S_a + w_r S_r − w_n S_n then adds what is comparable. What is trained stands beside its step 0:
left-out anomalies decide how much of the training counts.

The weights are those of a logistic regression of left-out known anomalies against held-out normals, with a prior, which
rules where there is little evidence. Each mode has weights of its own: what is learned in one mode says little about
the anomalies of another.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from mpfm_kedro.detectors.mpfm.patches import of_mode
from mpfm_kedro.detectors.mpfm.tensors import TensorModule

SCORES = ("g0", "g", "a", "r0", "r", "n")  # g0, r0: at step 0
PARTS = ("g", "a", "r", "n")
MEMBERS = ([0, 1], [2], [3, 4], [5])  # the scores that make each part
SIGNS = torch.tensor([1.0, 1.0, 1.0, -1.0])  # S_n is a normality
MIN_NORMALS_OF_A_MODE = 8
GROUP_PRIOR = 10.0  # κ: normals that a group is drawn to all normals
TAIL = 0.9  # quantile beyond which the tail is exponential
QUANTILES = torch.linspace(0, TAIL, 10)
FAR = 10.0  # nats
TAIL_PRIOR = 5.0  # normals that the tail is drawn to the slope of the bulk
PRIOR_SPREAD = 0.7
PRIOR_WEIGHTS = np.array([0.5, 0.5, 1.0, 1.5, 1.5, 1.0])  # of a score before any evidence
STEP_0 = np.array([True, False, False, True, False, False])  # S_g and S_r before training
ANOMALIES_OF_THE_PRIOR = 3.0
WEIGHT_NORM = 2.0  # of the four parts together, as of four weights of 1
ALL_SCORES = np.ones(len(SCORES), dtype=bool)


class Evidence(NamedTuple):
    """Scores of images that nothing was fitted to."""

    scores: Tensor  # (n, S)
    p: Tensor  # group weights (n, K)
    mode: Tensor  # (n,)
    weight: Tensor  # what each counts (n,): a normal 1, a known anomaly 1 over all of its views


class PlainSum(TensorModule):
    """The printed form: S_g + S_a + S_r − S_n of the trained modules' outputs, as far as they are counted."""

    weight: Tensor  # of each of S scores in each mode (S, J), or in all (S, 1)

    @property
    def part_weights(self) -> Tensor:
        """What S_g, S_a, S_r and S_n count in each mode, (4, J)."""
        return torch.stack([self.weight[members].sum(0) for members in MEMBERS])

    def forward(self, scores: Tensor, p: Tensor, mode: Tensor) -> Tensor:
        """What is added: the scores as they are, (B, …, S)."""
        return scores

    def contributions(self, t: Tensor, mode: Tensor) -> Tensor:
        """What each part adds to the sum: (B, …, S) and modes (B,) → (B, …, 4)."""
        added = t * _in_shape_of(t, of_mode(self.weight.T, mode))
        return torch.stack([added[..., members].sum(-1) for members in MEMBERS], -1)

    def parts(self, t: Tensor, mode: Tensor) -> Tensor:
        """S_g, S_a, S_r, S_n as trained, (B, S) → (B, 4)."""
        return t[:, [members[-1] for members in MEMBERS]] * SIGNS.to(t)


class SoftCalibration(PlainSum):
    """Scores in nats of surprise, and their weights, which are not negative."""

    center: Tensor  # of each of S scores in each mode (S, J)
    spread: Tensor  # (S, J)
    group_mean: Tensor  # m (S, K)
    group_variance: Tensor  # v (S, K)
    knot: Tensor  # where the slope of t changes (S, Q)
    bend: Tensor  # by how much (S, Q)

    @classmethod
    def fit(cls, normals: Evidence, n_modes: int) -> tuple[Self, Tensor]:
        """The calibration by held-out normals, with weights of 1; and t of these normals themselves, (n, S).

        In its own t a normal does not take part in the statistics of its groups: it is as a new one.
        """
        center, spread = _mode_statistics(normals, n_modes)
        s = (normals.scores - center.T[normals.mode]) / spread.T[normals.mode]
        total, size = normals.p.T @ s, normals.p.sum(0)[:, None]  # (K, S), (K, 1)
        mean = total / (size + GROUP_PRIOR)
        squares = normals.p[..., None] * (s[:, None] - mean).square()  # (n, K, S)
        variance = (squares.sum(0) + GROUP_PRIOR) / (size + GROUP_PRIOR)
        p, others = normals.p[..., None], size - normals.p[..., None] + GROUP_PRIOR
        mean_without = (total - p * s[:, None]) / others
        variance_without = (squares.sum(0) - squares + GROUP_PRIOR) / others
        held_out = (s - (p * mean_without).sum(1)) / (p * variance_without).sum(1).sqrt()
        knot, bend = fit_tails(held_out)
        tables = {"center": center, "spread": spread, "group_mean": mean.T, "group_variance": variance.T}
        calibration = cls(**tables, knot=knot, bend=bend, weight=torch.ones_like(center))
        return calibration, surprise(held_out, knot, bend)

    def forward(self, scores: Tensor, p: Tensor, mode: Tensor) -> Tensor:
        """t = −log p̂ of each score: (B, …, S), p (B, K) and modes (B,) → (B, …, S).

        s' = (s − Σ_k p_k m_k) / √(Σ_k p_k v_k), then a line with bends: 0 for the least unusual normal, and straight
        beyond the 90 % quantile, which is an exponential tail (``surprise``).
        """
        center, spread = (_in_shape_of(scores, table.T[mode]) for table in (self.center, self.spread))
        mean, variance = (_in_shape_of(scores, p @ table.T) for table in (self.group_mean, self.group_variance))
        standardised = ((scores - center) / spread - mean) / variance.sqrt()
        return surprise(standardised, self.knot, self.bend)

    def parts(self, t: Tensor, mode: Tensor) -> Tensor:
        """S_g, S_a, S_r, S_n: (B, S) and modes (B,) → (B, 4); trained and step 0 in the proportion of their weights."""
        weight = self.weight.T[mode] + 1e-9
        parts = [(t * weight)[:, members].sum(1) / weight[:, members].sum(1) for members in MEMBERS]
        return torch.stack(parts, 1) * SIGNS.to(t)


def _in_shape_of(scores: Tensor, table: Tensor) -> Tensor:
    """Values of images (B, S) in the shape of their scores (B, …, S)."""
    return table.view(-1, *(1,) * (scores.dim() - 2), len(SCORES))


def _mode_statistics(normals: Evidence, n_modes: int) -> tuple[Tensor, Tensor]:
    """Centre and spread (S, J) in each mode, where it has enough normals; else of all."""
    statistics = []
    for j in range(n_modes):
        of_mode = normals.scores[normals.mode == j]
        scores = of_mode if len(of_mode) >= MIN_NORMALS_OF_A_MODE else normals.scores
        statistics.append(torch.stack([scores.mean(0), scores.std(0, correction=0)]))
    center, spread = torch.stack(statistics, 2)
    return center, torch.where(spread > 1e-9, spread, torch.ones_like(spread))


def surprise(scores: Tensor, knot: Tensor, bend: Tensor) -> Tensor:
    """t = −log p̂ of standardised scores (…, S) by knots and bends (S, Q): (…, S).

    Beyond 10, rarer than one in 20,000, no normal was ever seen: t goes on as its logarithm, so that no part decides
    alone by the length of its tail.
    """
    t = ((scores[..., None] - knot).clamp_min(0) * bend).sum(-1)
    return torch.where(t < FAR, t, FAR * (1 + (t.clamp_min(FAR) / FAR).log()))


def fit_tails(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Knots and bends (S, Q) of t = −log p̂ from scores of held-out normals (n, S).

    Between the quantiles t is linear. Beyond the last one it has the slope 1 / mean excess: an exponential tail. With
    few normals the excess is drawn to what the upper half of the bulk would have.
    """
    quantiles = QUANTILES.to(scores)
    knot = scores.quantile(quantiles, dim=0)
    t = -(1 - quantiles).log()[:, None]
    slope = t.diff(dim=0) / knot.diff(dim=0).clamp_min(1e-3)
    excess = (scores - knot[-1]).clamp_min(0)
    above = (excess > 0).sum(0)
    bulk = (knot[-1] - scores.median(0).values) / (t[-1] - np.log(2))
    mean_excess = (excess.sum(0) + TAIL_PRIOR * bulk) / (above + TAIL_PRIOR)
    slope = torch.cat([slope, 1 / mean_excess.clamp_min(1e-3)[None]])
    return knot.T.contiguous(), slope.diff(dim=0, prepend=torch.zeros_like(slope[:1])).T.contiguous()


def counted_scores(parts: list[str], step_0: bool) -> np.ndarray:
    """Which scores are added: those of the named parts, at step 0 without what was trained of S_g and S_r, (S,)."""
    return np.array([name[0] in parts and not (step_0 and f"{name}0" in SCORES) for name in SCORES])


def prior_weights(n_known: float, counted: np.ndarray = ALL_SCORES) -> np.ndarray:
    """What is learned counts M / (M + 3), and what it starts from the rest of it, (S,).

    Where only one of a trained score and its step 0 is counted, it has the weight of both.
    """
    learned = n_known / (n_known + ANOMALIES_OF_THE_PRIOR)
    share = np.where(STEP_0, 1 - learned, learned)
    for members in MEMBERS:
        if len(members) > 1 and counted[members].sum() == 1:
            share[members] = 1.0
    return PRIOR_WEIGHTS * share


class Calibrated(NamedTuple):
    """Calibrated scores of one backbone, of images that they were not fitted to."""

    normals: Tensor  # t of held-out normals (n, S)
    anomalies: Tensor  # t of left-out known anomalies and their views (m, S)
    mode: Tensor  # of these anomalies (m,)
    weight: Tensor  # what each of them counts (m,)
    n_modes: int  # J


def fit_weights(backbones: Sequence[Calibrated], n_known: int, counted: np.ndarray = ALL_SCORES) -> list[Tensor]:
    """The weights (S, J) of each backbone; in each of its modes the weights of all backbones are fitted at once.

    The known anomalies of all other modes together count at most as one of the mode's own. The weights of a mode have
    one norm, so that a mode with more evidence has no larger scores; scores that are not counted (S,) take no part.
    Evidence against every score decides nothing: the weights are then those of the prior.
    """
    number, added = len(backbones), np.tile(counted, len(backbones))
    normals = torch.cat([backbone.normals for backbone in backbones], 1).double().numpy()[:, added]
    anomalies = torch.cat([backbone.anomalies for backbone in backbones], 1).double().numpy()[:, added]
    tables = []
    for index, backbone in enumerate(backbones):
        table = np.empty((len(SCORES), backbone.n_modes))
        for j in range(backbone.n_modes):
            count, known = counted_in_mode(backbone, j, n_known)
            prior = np.tile(prior_weights(known, counted) / number, number)[added]
            weights = stacked_weights(normals, anomalies, count, prior)
            fitted = np.zeros(len(added))
            fitted[added] = weights if weights.any() else prior
            by_backbone = fitted.reshape(number, -1)
            parts = np.stack([by_backbone[:, members].sum(1) for members in MEMBERS])
            table[:, j] = by_backbone[index] * WEIGHT_NORM / max(float(np.linalg.norm(parts)), 1e-9)
        tables.append(torch.from_numpy(table).float())
    return tables


def counted_in_mode(known: Calibrated, mode: int, n_known: int) -> tuple[np.ndarray, float]:
    """What each anomaly of the evidence counts in a mode (m,), and how many of the M known ones count there.

    Those of the mode count fully, the others together as one or less. A single known anomaly, which is never left out,
    thus counts as one in every mode; of several each is in the evidence.
    """
    count, in_mode = known.weight.double().numpy(), (known.mode == mode).numpy()
    of_mode = count[in_mode].sum()
    others = n_known - of_mode
    return count * np.where(in_mode, 1.0, 1 / max(1.0, others)), of_mode + min(1.0, others)


def stacked_weights(normals: np.ndarray, anomalies: np.ndarray, count: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Weights w ≥ 0 (k,) of t of all backbones, (n, k) and (m, k): logistic regression with a Gaussian prior.

    Minimises Σ_i c_i log(1 + exp(∓(w · t_i + b))) + ‖w − prior‖² / (2 · 0.7²), w ≥ 0; anomalies count c_i = ``count``,
    which is 1 each with all of their views, and normals as much as the anomalies together.
    """
    total = count.sum()
    if total == 0:
        return prior
    x = np.concatenate([normals, anomalies])
    sign = np.repeat([1.0, -1.0], [len(normals), len(anomalies)])
    counts = np.concatenate([np.full(len(normals), total / len(normals)), count])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = parameters[:-1], parameters[-1]
        logit = sign * (x @ weight + bias)
        slope = counts * sign * expit(logit)
        deviation = (weight - prior) / PRIOR_SPREAD
        value = counts @ np.logaddexp(0, logit) + 0.5 * deviation @ deviation
        return value, np.append(slope @ x + deviation / PRIOR_SPREAD, slope.sum())

    bounds = [(0, None)] * len(prior) + [(None, None)]
    return minimize(loss, np.append(prior, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x[:-1]
