"""The four scoring modules M_g, M_a, M_r and M_n; each has a leading axis of R rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, softplus

from mpfm_kedro.detectors.mpfm.patches import top_number

SOFTPLUS_IS_ONE = math.log(math.e - 1)


class Logit(nn.Module):
    """softplus(α) · (s − centre) / spread + β: a score as the logit of a binary loss, in the same order; θ = (α, β).

    Args:
        center: of the score of normals (R,).
        spread: (R,).
    """

    def __init__(self, center: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.center = nn.Buffer(center.clone())
        self.spread = nn.Buffer(spread.clamp_min(1e-6))
        self.slope = nn.Parameter(torch.full_like(center, SOFTPLUS_IS_ONE))
        self.offset = nn.Parameter(torch.zeros_like(center))

    def forward(self, score: Tensor) -> Tensor:
        """(R, B) → (R, B)."""
        standardised = (score - self.center[:, None]) / self.spread[:, None]
        return softplus(self.slope)[:, None] * standardised + self.offset[:, None]


class ResidualScore(nn.Module):
    """M_r: S_r = Σ_c e^{η_c} r_c² over the residual r to the nearest prototype; η = 0 at the start.

    Args:
        rounds: R.
        size: of r.
    """

    def __init__(self, rounds: int, size: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(rounds, 1, size))

    def forward(self, squares: Tensor) -> Tensor:
        """Squares r_c² (R, B, …, C) → (R, B, …)."""
        return (squares.flatten(1, -2) * self.log_weight.exp()).sum(2).view(squares.shape[:-1])


class NormalityScore(nn.Module):
    """M_n: S_n = w · z + b, higher for normals.

    Args:
        weight: w (R, d).
        bias: b (R,).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())

    def forward(self, z: Tensor) -> Tensor:
        """(B, d) → (R, B)."""
        return self.weight @ z.T + self.bias[:, None]


class TopPositions(nn.Module):
    """M_a: S_a = mean over members e of the mean of |w_e · v_x + b_e| over the top share O of e's positions x.

    Members are trained from different first weights, since one alone may end in a poor local minimum, and may average
    different shares of the positions: a defect may fill a tenth of the image or a hundredth.

    Args:
        weight: w (R, E, C), on standardised channels.
        bias: b (R, E).
        shares: O of each member; E in all.
    """

    def __init__(self, weight: Tensor, bias: Tensor, shares: Sequence[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())
        self.shares = list(shares)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """S_a, and the mean over members at each position: (B, X, C) → (R, B), (R, B, X)."""
        scores = (torch.einsum("rec,bxc->rebx", self.weight, v) + self.bias[..., None, None]).abs()
        largest = scores.topk(max(self._numbers(v.shape[1])), dim=3).values
        means = [largest[:, e, :, :k].mean(2) for e, k in enumerate(self._numbers(v.shape[1]))]
        return torch.stack(means).mean(0), scores.mean(1)

    def member_scores(self, v: Tensor) -> Tensor:
        """The score of each member, for training, (B, X, C) → (R, E, B).

        At the top positions x with signs σ_x the mean of |w · v_x + b| is w · (Σ σ_x v_x / k) + b (Σ σ_x / k), and its
        gradient is that of this linear function: which positions are the top ones does not matter to first order. So
        only the few vectors at these positions take part in the gradient.
        """
        rounds, members, channels = self.weight.shape
        vectors = v.flatten(0, 1)
        with torch.no_grad():
            scores = self.weight.flatten(0, 1) @ vectors.T + self.bias.flatten()[:, None]
            scores = scores.view(rounds, members, *v.shape[:2])
            first = v.shape[1] * torch.arange(len(v), device=v.device)[:, None]
            mean, sign_mean = v.new_empty(rounds, members, len(v), channels), v.new_empty(rounds, members, len(v))
            for e, number in enumerate(self._numbers(v.shape[1])):
                position = scores[:, e].abs().topk(number, sorted=False).indices
                sign = scores[:, e].gather(2, position).sign() / number
                bags = (position + first).flatten(0, 1), vectors
                summed = embedding_bag(*bags, mode="sum", per_sample_weights=sign.flatten(0, 1))
                mean[:, e] = summed.view(rounds, len(v), channels)
                sign_mean[:, e] = sign.sum(2)
        return (self.weight[:, :, None] * mean).sum(3) + self.bias[..., None] * sign_mean

    def _numbers(self, positions: int) -> list[int]:
        """How many positions each member averages."""
        return [top_number(share, positions) for share in self.shares]
