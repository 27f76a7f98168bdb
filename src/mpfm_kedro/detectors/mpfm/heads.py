"""The four scoring modules; every score is a logit."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.patches import PatchGroups, smooth

SOFTPLUS_IS_ONE = math.log(math.e - 1)


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
        self.slope = nn.Parameter(torch.tensor(SOFTPLUS_IS_ONE))
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, nll_per_dimension: Tensor) -> Tensor:
        """(B,) → (B,), in the same order."""
        standardised = (nll_per_dimension - self.center) / self.spread
        return nn.functional.softplus(self.slope) * standardised + self.offset


class LocalEvidence(NamedTuple):
    """The most unusual patches of B images: mean energy (B,) and mean standardised patch (B, C)."""

    energy: Tensor
    patch: Tensor


class LocalScore(nn.Module):
    """M_a scores every position of F; S_a is the mean over the top share of the positions.

    A position's score is softplus(α) · energy, its distance from the normals' patches in units of the normal images'
    spread, plus a learned 1×1 convolution that is zero at the start. The positions with the highest energy are
    averaged; which ones does not depend on what is learned, so their means are all that training needs. Without patch
    groups (the printed form) the score is the convolution alone and the top positions are those of that score.

    Args:
        center: centre of each channel over the positions of training normals, (C,).
        spread: its spread; the convolution acts on standardised channels.
        top_share: share of the positions that is averaged.
        patches: the normals' patches, or None.
    """

    center: Tensor
    spread: Tensor
    energy_center: Tensor
    energy_spread: Tensor

    def __init__(self, center: Tensor, spread: Tensor, top_share: float, patches: PatchGroups | None = None) -> None:
        super().__init__()
        self.register_buffer("energy_center", torch.tensor(0.0))
        self.register_buffer("energy_spread", torch.tensor(1.0))
        self.register_buffer("center", center.float())
        self.register_buffer("spread", spread.float())
        self.top_share = top_share
        self.patches = patches
        self.slope = nn.Parameter(torch.tensor(SOFTPLUS_IS_ONE))
        self.weight = nn.Parameter(torch.zeros(len(center)))
        self.bias = nn.Parameter(torch.zeros(()))

    def standardise_energy(self, of_normals: Tensor) -> None:
        """Take centre and spread of the energy of training normals (n,) as its zero and unit."""
        self.energy_center.copy_(of_normals.mean())
        self.energy_spread.copy_(of_normals.std(correction=0).clamp_min(1e-6))

    def evidence(self, maps: Tensor, mode: Tensor) -> LocalEvidence | None:
        """What no training changes: (B, C, H', W') and modes (B,) → means over the top positions."""
        if self.patches is None:
            return None
        smoothed = smooth(maps)
        top = self._top(self.patches.energy(smoothed, mode))
        index = top.indices[:, None].expand(-1, maps.shape[1], -1)
        patch = smoothed.flatten(2).gather(2, index).mean(2)
        return LocalEvidence(self._standardised(top.values.mean(1)), (patch - self.center) / self.spread)

    def heat_map(self, maps: Tensor, mode: Tensor) -> Tensor:
        """The score of each position: (B, C, H', W') and modes (B,) → (B, H', W')."""
        weight = self.weight / self.spread
        source = maps.float() if self.patches is None else smooth(maps)
        scores = torch.einsum("c,bchw->bhw", weight, source) + self.bias - weight @ self.center
        if self.patches is not None:
            energy = self.patches.energy(source, mode)
            scores = scores + nn.functional.softplus(self.slope) * self._standardised(energy)
        return scores

    def forward(self, maps: Tensor | None, evidence: LocalEvidence | None) -> Tensor:
        """S_a (B,) from the evidence, or from maps (B, C, H', W') without patch groups."""
        if evidence is not None:
            return nn.functional.softplus(self.slope) * evidence.energy + evidence.patch @ self.weight + self.bias
        assert maps is not None
        scores = self.heat_map(maps, torch.zeros(len(maps)))
        # While all positions score the same, the top ones are arbitrary: the sign is learned from all of them.
        return self._top(scores).values.mean(1) if self.weight.any() else scores.mean((1, 2))

    def _standardised(self, energy: Tensor) -> Tensor:
        return (energy - self.energy_center) / self.energy_spread

    def _top(self, scores: Tensor) -> torch.return_types.topk:
        flat = scores.flatten(1)
        return flat.topk(max(1, int(self.top_share * flat.shape[1])), dim=1)


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
