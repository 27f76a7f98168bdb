"""From scores of different scale to one: each becomes −log of its p-value among held-out normals like the image.

A score is standardised within the mode of the image, then within its groups, softly; its tail says how rare it is. The
sum S = w_g S_g + w_a S_a + w_r S_r − w_n S_n then adds what is comparable. What is trained stands beside its step 0:
left-out anomalies decide how much of the training counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

SCORES = ("g0", "g", "a", "r0", "r", "n")  # g0, r0: at step 0
PARTS = ("g", "a", "r", "n")
MEMBERS = ((0, 1), (2,), (3, 4), (5,))  # the scores that make each part
SIGNS = torch.tensor([1.0, 1.0, 1.0, -1.0])  # S_n is a normality
MIN_NORMALS_OF_A_MODE = 8
GROUP_PRIOR = 10.0  # κ: normals that a group is drawn to all normals
TAIL = 0.9  # quantile beyond which the tail is exponential
LEVELS = torch.linspace(0, TAIL, 10)
FAR = 10.0  # nats
TAIL_PRIOR = 5.0  # normals that the tail is drawn to the slope of the bulk


class Calibration(nn.Module):
    """Scores in nats of surprise, and their weights.

    Args:
        center: of each of S scores in each mode (S, J).
        spread: (S, J).
        group_mean: m (S, K).
        group_variance: v (S, K).
        knot: where the slope of t changes (S, Q).
        bend: by how much (S, Q).
        weight: (S, J), not negative.
    """

    def __init__(
        self,
        center: Tensor,
        spread: Tensor,
        group_mean: Tensor,
        group_variance: Tensor,
        knot: Tensor,
        bend: Tensor,
        weight: Tensor,
    ) -> None:
        super().__init__()
        self.center = nn.Buffer(center)
        self.spread = nn.Buffer(spread)
        self.group_mean = nn.Buffer(group_mean)
        self.group_variance = nn.Buffer(group_variance)
        self.knot = nn.Buffer(knot)
        self.bend = nn.Buffer(bend)
        self.weight = nn.Buffer(weight)

    def forward(self, scores: Tensor, p: Tensor, mode: Tensor) -> Tensor:
        """t = −log p̂ of each score: (B, …, S), p (B, K) and modes (B,) → (B, …, S).

        s' = (s − Σ_k p_k m_k) / √(Σ_k p_k v_k), then a line with bends: 0 for the least unusual normal, and straight
        beyond the 90 % quantile, which is an exponential tail (``surprise``).
        """
        between = (1,) * (scores.dim() - 2)
        center, spread = (table.T[mode].view(-1, *between, len(SCORES)) for table in (self.center, self.spread))
        mean, variance = ((p @ table.T).view(-1, *between, len(SCORES)) for table in self._groups)
        standardised = ((scores - center) / spread - mean) / variance.sqrt()
        return surprise(standardised, self.knot, self.bend)

    @property
    def _groups(self) -> tuple[Tensor, Tensor]:
        return self.group_mean, self.group_variance

    def contributions(self, t: Tensor, mode: Tensor) -> Tensor:
        """What each part adds to the sum: (B, …, S) and modes (B,) → (B, …, 4)."""
        added = t * self.weight.T[mode].view(-1, *(1,) * (t.dim() - 2), len(SCORES))
        return torch.stack([added[..., list(own)].sum(-1) for own in MEMBERS], -1)

    def parts(self, t: Tensor, mode: Tensor) -> Tensor:
        """S_g, S_a, S_r, S_n: (B, S) and modes (B,) → (B, 4); trained and step 0 in the proportion of their weights."""
        weight = self.weight.T[mode]
        found = []
        for own in MEMBERS:
            share = weight[:, list(own)] + 1e-9
            found.append((t[:, list(own)] * share).sum(1) / share.sum(1))
        return torch.stack(found, 1) * SIGNS.to(t)


class PlainSum(nn.Module):
    """The printed form: S_g + S_a + S_r − S_n of the trained modules' outputs, as far as they are counted.

    Args:
        weight: 1 or 0 of each score (S, 1).
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)

    def forward(self, scores: Tensor, p: Tensor, mode: Tensor) -> Tensor:
        """The scores as they are."""
        return scores

    def contributions(self, t: Tensor, mode: Tensor) -> Tensor:
        """What each part adds to the sum: (B, …, S) → (B, …, 4)."""
        added = t * self.weight[:, 0]
        return torch.stack([added[..., list(own)].sum(-1) for own in MEMBERS], -1)

    def parts(self, t: Tensor, mode: Tensor) -> Tensor:
        """S_g, S_a, S_r, S_n as trained, (B, S) → (B, 4)."""
        return t[:, [own[-1] for own in MEMBERS]] * SIGNS.to(t)


@dataclass(frozen=True)
class Evidence:
    """Scores of images that nothing was fitted to.

    Args:
        scores: (n, S).
        p: group weights (n, K).
        mode: (n,).
        count: what each counts (n,): a normal 1, a known anomaly 1 over all of its views.
    """

    scores: Tensor
    p: Tensor
    mode: Tensor
    count: Tensor

    def take(self, index: Tensor) -> Evidence:
        """Some of the images."""
        return Evidence(*(value[index] for value in vars(self).values()))


def calibrate(normals: Evidence, n_modes: int) -> tuple[Calibration, Tensor]:
    """The calibration by held-out normals, with weights of 1; and t of these normals themselves, (n, S).

    In its own t a normal does not take part in the statistics of its groups: it is as a new one.
    """
    center, spread = _mode_statistics(normals, n_modes)
    s = (normals.scores - center.T[normals.mode]) / spread.T[normals.mode]
    total, size = normals.p.T @ s, normals.p.sum(0)[:, None]  # (K, S), (K, 1)
    mean = total / (size + GROUP_PRIOR)
    squares = normals.p[..., None] * (s[:, None] - mean).square()  # (n, K, S)
    variance = (squares.sum(0) + GROUP_PRIOR) / (size + GROUP_PRIOR)
    own, others = normals.p[..., None], size - normals.p[..., None] + GROUP_PRIOR
    mean_without = (total - own * s[:, None]) / others
    variance_without = (squares.sum(0) - squares + GROUP_PRIOR) / others
    held_out = (s - (own * mean_without).sum(1)) / (own * variance_without).sum(1).sqrt()
    knot, bend = fit_tails(held_out)
    calibration = Calibration(center, spread, mean.T, variance.T, knot, bend, torch.ones_like(center))
    return calibration, surprise(held_out, knot, bend)


def _mode_statistics(normals: Evidence, n_modes: int) -> tuple[Tensor, Tensor]:
    """Centre and spread (S, J) in each mode, where it has enough normals; else of all."""
    center = normals.scores.mean(0)[:, None].repeat(1, n_modes)
    spread = normals.scores.std(0, correction=0)[:, None].repeat(1, n_modes)
    for j in range(n_modes):
        own = normals.scores[normals.mode == j]
        if len(own) >= MIN_NORMALS_OF_A_MODE:
            center[:, j], spread[:, j] = own.mean(0), own.std(0, correction=0)
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
    knot = scores.quantile(LEVELS.to(scores), dim=0)
    t = -(1 - LEVELS.to(scores)).log()[:, None]
    slope = t.diff(dim=0) / knot.diff(dim=0).clamp_min(1e-3)
    excess = (scores - knot[-1]).clamp_min(0)
    above = (excess > 0).sum(0)
    bulk = (knot[-1] - scores.median(0).values) / (t[-1] - np.log(2))
    mean_excess = (excess.sum(0) + TAIL_PRIOR * bulk) / (above + TAIL_PRIOR)
    slope = torch.cat([slope, 1 / mean_excess.clamp_min(1e-3)[None]])
    return knot.T.contiguous(), slope.diff(dim=0, prepend=torch.zeros_like(slope[:1])).T.contiguous()


def joined(evidence: Sequence[Evidence]) -> Evidence:
    """All of some evidence."""
    return Evidence(*(torch.cat(values) for values in zip(*(vars(each).values() for each in evidence), strict=True)))
