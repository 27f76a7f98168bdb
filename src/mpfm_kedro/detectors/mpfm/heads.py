"""The heads that learn from known anomalies, each fitted once for every fold that it leaves out and once for all.

A head that was fitted without a known anomaly, or a normal, says what it will say of a new one: the evidence that the
weights of the scores rest on. All H heads of a kind are fitted at once, since reading the features costs most.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs
from mpfm_kedro.detectors.mpfm.patches import to_patches

MARGIN = 5.0  # how far the scores of anomalies shall deviate, in units of the prior N(0, 1) of normals' scores
LEARNING_RATE = 3e-2
DECAYS, DECAY = 5, 0.1
WEIGHT_DECAY = 1e-5
PENALTY = 1e-3  # C of logistic regression


class TopPositions:
    """M_a: S_a = mean over the top share of the positions x of mean_e |w_e · F_x + b_e|, on standardised channels.

    Each head has E members, trained from different first weights: one alone may end in a poor local minimum.

    Args:
        weight: w of each head and member (H, E, C).
        bias: b (H, E).
        center: of each channel over the positions of training normals (C,).
        spread: likewise.
        top_share: share of the positions that is averaged.
    """

    def __init__(self, weight: Tensor, bias: Tensor, center: Tensor, spread: Tensor, top_share: float) -> None:
        self.weight, self.bias, self.center, self.spread, self.top_share = weight, bias, center, spread, top_share

    def position_scores(self, maps: Tensor) -> Tensor:
        """The score of each position, (B, C, H', W') → (B, H' · W', H)."""
        weight = (self.weight / self.spread).to(maps.device)
        offset = (self.bias - (self.weight / self.spread) @ self.center).to(maps.device)
        members = to_patches(maps.float()) @ weight.flatten(0, 1).T + offset.flatten()
        return members.abs().view(len(maps), -1, *offset.shape).mean(3)

    def maps(self, rows: FeatureRows, device: torch.device) -> Tensor:
        """The score of each position by each head, (n, H', W', H)."""
        shape = *rows.maps.shape[2:], len(self.weight)
        found = [torch.empty(0, *shape)]
        found += [self.position_scores(maps.to(device)).cpu().view(-1, *shape) for _, maps in rows.map_batches()]
        return torch.cat(found)

    def score(self, rows: FeatureRows, device: torch.device) -> np.ndarray:
        """S_a of each image by each head, (n, H)."""
        found = [np.empty((0, len(self.weight)))]
        for _, maps in rows.map_batches():
            scores = self.position_scores(maps.to(device))
            top = scores.topk(top_number(self.top_share, scores.shape[1]), dim=1).values.mean(1)
            found.append(top.cpu().double().numpy())
        return np.concatenate(found)


def top_number(share: float, positions: int) -> int:
    """How many positions are averaged."""
    return max(1, int(share * positions))


def fit_top_positions(
    normals: FeatureRows,
    anomalies: FeatureRows,
    learns: tuple[np.ndarray, np.ndarray],
    center: Tensor,
    spread: Tensor,
    top_share: float,
    n_members: int,
    steps: int,
    batch: tuple[int, int],
    seed: int,
    context: Context,
) -> tuple[TopPositions, list[float]]:
    """Train each member of each head by the deviation loss: its S_a → 0 for normals, S_a ≥ 5 for anomalies.

    Adam on ``deviation_loss``, with a rate that decreases by steps from 0.03 to 3e-6. Members differ in their first
    weights alone.

    Args:
        normals: n training normals.
        anomalies: m known anomalies and their augmented views.
        learns: which normals (H, n) and which anomalies (H, m) each head learns from.
        center: of each channel (C,).
        spread: likewise.
        top_share: share of the positions that is averaged.
        n_members: E, of each head.
        steps: of training.
        batch: number of normals and of anomalies in a batch.
        seed: of the first weights and of the batches.
        context: device and memory.

    Returns:
        The heads, and the mean loss of the last head's members over each tenth of the steps.
    """
    device = context.device
    source = StandardisedInput("maps", center, spread)
    (inputs,) = training_inputs([source], [normals, anomalies], sum(batch), context)
    allowed = [torch.from_numpy(each).float().to(device) for each in learns]
    n_heads, channels = len(allowed[0]), len(center)
    generator = torch.Generator().manual_seed(seed)
    first = (2 * torch.rand(n_members, channels, generator=generator) - 1) / channels**0.5
    weight = first.repeat(n_heads, 1).to(device)  # head after head, (H · E, C)
    bias = torch.zeros(len(weight), device=device)
    optimiser = torch.optim.Adam([weight, bias], LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, max(1, steps // DECAYS), DECAY)
    abnormal = torch.arange(sum(batch), device=device)[:, None] >= batch[0]
    losses = []
    for _ in range(steps):
        drawn = [
            torch.randint(each.shape[1], (size,), generator=generator) for each, size in zip(learns, batch, strict=True)
        ]
        share = torch.cat([_shares(each[:, index]) for each, index in zip(allowed, drawn, strict=True)], dim=1)
        x = inputs.batch(torch.cat([drawn[0], drawn[1] + len(normals)])).flatten(1, 2)
        positions = x.flatten(0, 1)
        scores = (positions @ weight.T + bias).view(*x.shape[:2], -1)
        of_members = share.repeat_interleave(n_members, dim=0).T
        loss, gradient = deviation_loss(scores, abnormal, of_members, top_number(top_share, x.shape[1]))
        weight.grad, bias.grad = gradient.flatten(0, 1).T @ positions, gradient.sum((0, 1))
        optimiser.step()
        schedule.step()
        losses.append(loss[-n_members:].mean())
    history = [float(torch.stack(part).mean()) for part in _tenths(losses)]
    shape = n_heads, n_members
    return TopPositions(
        weight.cpu().unflatten(0, shape), bias.cpu().unflatten(0, shape), center, spread, top_share
    ), history


def deviation_loss(scores: Tensor, abnormal: Tensor, share: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The loss of each head, and its gradient with respect to the signed scores of positions.

    L_h = Σ_i share_ih l(S_ih) / B with S the mean of the k largest |score|, l(S) = S for normals and max(0, 5 − S) for
    anomalies. The gradient is zero but at the k top positions.

    Args:
        scores: signed, of each position (B, X, H).
        abnormal: whether the image is an anomaly (B, 1).
        share: what each image counts in each head's loss (B, H).
        k: how many positions are averaged.

    Returns:
        Losses (H,) and gradient (B, X, H).
    """
    top = scores.abs().topk(k, dim=1)
    score = top.values.mean(1)
    loss = torch.where(abnormal, (MARGIN - score).clamp_min(0), score)
    slope = torch.where(abnormal, -(score < MARGIN).float(), 1.0) * share / (k * len(scores))
    sign = scores.gather(1, top.indices).sign()
    return (loss * share).mean(0), torch.zeros_like(scores).scatter_(1, top.indices, sign * slope[:, None])


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


def _shares(learns: Tensor) -> Tensor:
    """What each of B samples counts in the loss of each head, B in all; 0 where the head does not learn from it."""
    return learns * learns.shape[1] / learns.sum(1, keepdim=True).clamp_min(1)


def _tenths(values: list[Tensor]) -> list[list[Tensor]]:
    size = max(1, len(values) // 10)
    return [values[start : start + size] for start in range(0, len(values), size)]
