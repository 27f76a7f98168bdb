"""The four scoring modules; every score is a logit."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Parts(NamedTuple):
    """The four scores of B images, each (B,)."""

    g: Tensor
    a: Tensor
    r: Tensor
    n: Tensor


class GlobalScore(nn.Module):
    """M_g: S_g = softplus(α) · (NLL/d − centre) / spread + β; θ_g = (α, β).

    The raw NLL is of order d and would saturate a binary loss; per dimension and standardised it does not.
    """

    center: Tensor
    spread: Tensor

    def __init__(self, center: float, spread: float) -> None:
        super().__init__()
        self.register_buffer("center", torch.tensor(center))
        self.register_buffer("spread", torch.tensor(max(spread, 1e-6)))
        self.slope = nn.Parameter(torch.tensor(math.log(math.e - 1)))  # softplus gives 1
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, nll_per_dimension: Tensor) -> Tensor:
        """(B,) → (B,), in the same order."""
        standardised = (nll_per_dimension - self.center) / self.spread
        return nn.functional.softplus(self.slope) * standardised + self.offset


class LocalScore(nn.Module):
    """M_a: a 1×1 convolution scores every position of F; S_a is the mean of the top share of them.

    Args:
        center: centre of each channel over the positions of training normals, (C,).
        spread: its spread; the weights act on standardised channels.
        top_share: share of the positions that is averaged.
    """

    center: Tensor
    spread: Tensor

    def __init__(self, center: Tensor, spread: Tensor, top_share: float) -> None:
        super().__init__()
        self.register_buffer("center", center.float())
        self.register_buffer("spread", spread.float())
        self.top_share = top_share
        self.weight = nn.Parameter(torch.zeros(len(center)))
        self.bias = nn.Parameter(torch.zeros(()))

    def heat_map(self, maps: Tensor) -> Tensor:
        """The score of each position: (B, C, H', W') → (B, H', W').

        The channels are standardised in the weights, not in the maps, which are large.
        """
        weight = self.weight / self.spread
        scores = (weight @ maps.float().flatten(2)).view(len(maps), *maps.shape[2:])
        return scores + self.bias - weight @ self.center

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H', W') → (B,)."""
        scores = self.heat_map(maps).flatten(1)
        top = max(1, int(self.top_share * scores.shape[1]))
        return scores.topk(top, dim=1).values.mean(1)


class LinearScore(nn.Module):
    """M_n on z, the pooled statistics of F, and M_r on (ψ(z) − μ_{c*}) / s: a linear score that starts at zero."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, size) → (B,)."""
        return self.linear(x).squeeze(1)
