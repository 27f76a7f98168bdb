"""The heads that learn from known anomalies, each fitted once for every fold that it leaves out and once for all.

A head that was fitted without a known anomaly, or a normal, says what it will say of a new one: the evidence that the
weights of the scores rest on. All H heads of a kind are fitted at once, since reading the features costs most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import embedding_bag

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs

MARGIN = 5.0  # how far the scores of anomalies shall deviate, in units of the prior N(0, 1) of normals' scores
LEARNING_RATE = 3e-2
DECAYS, DECAY = 5, 0.1
WEIGHT_DECAY = 1e-5
PENALTY = 1e-3  # C of logistic regression


class TopPositions:
    """M_a: S_a = mean over members e of the mean of |w_e · F_x + b_e| over the top share of e's positions x.

    Each head has E members, on standardised channels. They are trained from different first weights, since one alone
    may end in a poor local minimum, and average different shares of the positions: a defect may fill a tenth of the
    image or a hundredth.

    Args:
        weight: w of each head and member (H, E, C).
        bias: b (H, E).
        center: of each channel over the positions of training normals (C,).
        spread: likewise.
        shares: of the positions, averaged by each member; E in all.
    """

    def __init__(self, weight: Tensor, bias: Tensor, center: Tensor, spread: Tensor, shares: Sequence[float]) -> None:
        self.weight, self.bias, self.center, self.spread, self.shares = weight, bias, center, spread, list(shares)

    def head(self, number: int) -> TopPositions:
        """One of the heads alone."""
        return TopPositions(self.weight[[number]], self.bias[[number]], self.center, self.spread, self.shares)

    def of_members(self, maps: Tensor) -> Tensor:
        """|w_e · F_x + b_e| at each position, (B, C, H', W') → (B, H' · W', H, E)."""
        weight = (self.weight / self.spread).to(maps.device)
        offset = (self.bias - (self.weight / self.spread) @ self.center).to(maps.device)
        members = weight.flatten(0, 1) @ maps.float().flatten(2) + offset.flatten()[:, None]
        return members.abs().transpose(1, 2).unflatten(2, offset.shape)

    def top_mean(self, of_members: Tensor) -> Tensor:
        """S_a from the scores of positions by members, (B, X, H, E) → (B, H)."""
        count = rank_weights(self.shares, of_members.shape[1]).to(of_members.device)
        top = of_members.topk(len(count), dim=1).values
        return (top * count[:, None]).sum(1).mean(2)

    def inspect(self, rows: FeatureRows, device: torch.device) -> tuple[np.ndarray, Tensor]:
        """S_a of each image by each head (n, H), and the mean over members at each position (n, H', W', H)."""
        shape = *rows.maps.shape[2:], len(self.weight)
        scores, maps = [torch.empty(0, len(self.weight))], [torch.empty(0, *shape)]
        for _, batch in rows.map_batches(device):
            of_members = self.of_members(batch)
            scores.append(self.top_mean(of_members).cpu())
            maps.append(of_members.mean(3).cpu().view(-1, *shape))
        return torch.cat(scores).double().numpy(), torch.cat(maps)

    def score(self, rows: FeatureRows, device: torch.device) -> np.ndarray:
        """S_a of each image by each head, (n, H)."""
        scores = [self.top_mean(self.of_members(batch)).cpu() for _, batch in rows.map_batches(device)]
        return torch.cat([torch.empty(0, len(self.weight)), *scores]).double().numpy()


def top_number(share: float, positions: int) -> int:
    """How many positions are averaged."""
    return max(1, int(share * positions))


def rank_weights(shares: Sequence[float], positions: int) -> Tensor:
    """What the position of each rank counts in the mean of each member's top positions, (largest number, E)."""
    numbers = torch.tensor([top_number(share, positions) for share in shares])
    rank = torch.arange(int(numbers.max()))[:, None]
    return (rank < numbers) / numbers


@dataclass(frozen=True)
class Training:
    """How the members of M_a are trained.

    Args:
        shares: of the positions, averaged by each of the E members of a head.
        steps: of training.
        batch: number of normals and of anomalies in a batch.
        seed: of the first weights and of the batches.
    """

    shares: Sequence[float]
    steps: int
    batch: tuple[int, int]
    seed: int


def fit_top_positions(
    normals: FeatureRows,
    anomalies: FeatureRows,
    learns: tuple[np.ndarray, np.ndarray],
    source: StandardisedInput,
    training: Training,
    context: Context,
) -> tuple[TopPositions, list[float]]:
    """Train each member of each head by the deviation loss: its S_a → 0 for normals, S_a ≥ 5 for anomalies.

    Adam on ``deviation_loss``, with a rate that decreases by steps from 0.03 to 3e-6. Members differ in their first
    weights and in the share of the positions that they average.

    Args:
        normals: n training normals.
        anomalies: m known anomalies and their augmented views.
        learns: which normals (H, n) and which anomalies (H, m) each head learns from.
        source: standardises the maps by channel.
        training: shares, steps, batches and seed.
        context: device and memory.

    Returns:
        The heads, and the mean loss of the last head's members over each tenth of the steps.
    """
    (inputs,) = training_inputs([source], [normals, anomalies], sum(training.batch), context)
    generator = torch.Generator().manual_seed(training.seed)
    n_members, channels = len(training.shares), inputs.shape[-1]
    first = (2 * torch.rand(n_members, channels, generator=generator) - 1) / channels**0.5
    weight = first[:, None].repeat(1, len(learns[0]), 1).to(context.device)  # member after member, (E, H, C)
    bias = torch.zeros(weight.shape[:2], device=context.device)
    numbers = [top_number(share, math.prod(inputs.shape[1:-1])) for share in training.shares]
    abnormal = torch.arange(sum(training.batch), device=context.device) >= training.batch[0]
    optimiser = torch.optim.Adam([weight, bias], LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, max(1, training.steps // DECAYS), DECAY)
    losses = []
    for _ in range(training.steps):
        index, share = _draw(learns, training.batch, generator)
        x, share = inputs.batch(index).flatten(1, 2), share.to(context.device)
        scores = torch.einsum("ehc,bxc->ehbx", weight, x) + bias[..., None, None]
        found = [deviation_loss(own, abnormal, share, number) for own, number in zip(scores, numbers, strict=True)]
        weight.grad = torch.stack([weighted_sums(x, place, slope) for _, place, slope in found])
        bias.grad = torch.stack([slope.sum((1, 2)) for *_, slope in found])
        optimiser.step()
        schedule.step()
        losses.append(torch.stack([loss[-1] for loss, *_ in found]).mean())
    history = [float(torch.stack(part).mean()) for part in _tenths(losses)]
    weight, bias = (each.transpose(0, 1).contiguous().cpu() for each in (weight, bias))
    return TopPositions(weight, bias, source.center, source.spread, training.shares), history


def deviation_loss(scores: Tensor, abnormal: Tensor, share: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each head, and where and what its gradient is with respect to the signed scores of positions.

    L_h = Σ_i share_hi l(S_hi) / B with S the mean of the k largest |score|, l(S) = S for normals and max(0, 5 − S) for
    anomalies. The gradient is zero but at these k positions.

    Args:
        scores: signed, of each position (H, B, X).
        abnormal: whether the image is an anomaly (B,).
        share: what each image counts in each head's loss (H, B).
        number: k.

    Returns:
        Losses (H,), the k positions (H, B, k), the gradient there (H, B, k).
    """
    values, place = scores.abs().topk(number, sorted=False)
    score = values.mean(2)
    loss = torch.where(abnormal, (MARGIN - score).clamp_min(0), score)
    slope = torch.where(abnormal, -(score < MARGIN).float(), 1.0) * share / (len(abnormal) * number)
    return (loss * share).mean(1), place, scores.gather(2, place).sign() * slope[..., None]


def weighted_sums(x: Tensor, place: Tensor, weight: Tensor) -> Tensor:
    """Σ_bk weight_hbk x_b,place_hbk: vectors (B, X, C), places and weights of some of them (H, B, k) → (H, C)."""
    row = place + x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return embedding_bag(row.flatten(1), x.flatten(0, 1), mode="sum", per_sample_weights=weight.flatten(1))


def fit_linear(
    normals: np.ndarray, anomalies: np.ndarray, learns: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression of anomalies (m, d) against normals (n, d) for each head, classes balanced, L2 penalty.

    Returns:
        Weights (H, d) and biases (H,) of the logits.
    """
    weights, biases = [], []
    for own_normals, own_anomalies in zip(*learns, strict=True):
        x = np.concatenate([normals[own_normals], anomalies[own_anomalies]])
        y = np.repeat([0, 1], [own_normals.sum(), own_anomalies.sum()])
        fitted = LogisticRegression(C=PENALTY, class_weight="balanced", max_iter=500).fit(x, y)
        weights.append(fitted.coef_[0])
        biases.append(fitted.intercept_[0])
    return np.stack(weights), np.array(biases)


def _draw(
    learns: tuple[np.ndarray, np.ndarray], batch: tuple[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """B random rows of normals, then of anomalies, (B,), and what each counts in the loss of each head, (H, B)."""
    index, shares, first = [], [], 0
    for own, size in zip(learns, batch, strict=True):
        drawn = torch.randint(own.shape[1], (size,), generator=generator)
        index.append(drawn + first)
        shares.append(_shares(torch.from_numpy(own)[:, drawn].float()))
        first += own.shape[1]
    return torch.cat(index), torch.cat(shares, dim=1)


def _shares(learns: Tensor) -> Tensor:
    """What each of B samples counts in the loss of each head, B in all; 0 where the head does not learn from it."""
    return learns * learns.shape[1] / learns.sum(1, keepdim=True).clamp_min(1)


def _tenths(values: list[Tensor]) -> list[list[Tensor]]:
    size = max(1, len(values) // 10)
    return [values[start : start + size] for start in range(0, len(values), size)]
