"""Prototypes of the normals' patches: a flow in closed form, and prototypes where it ends.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. The patches v of each
mode of the normal images are transported by ψ(v) = Σ^{-1/2} (v − m), which whitens them. There the prototypes μ_k are
patches of normals, chosen by k-centre: each is the farthest from those before it. So what is rare among normals has
prototypes, too, and what is common does not take them all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

QUANTILE = 0.9


class Nearest(NamedTuple):
    """The nearest prototype of each of X patches of B images.

    Args:
        psi: ψ(v) (B, X, C).
        square: ‖ψ(v) − μ_{c*}‖² (B, X).
        number: c* (B, X).
    """

    psi: Tensor
    square: Tensor
    number: Tensor


class PatchPrototypes(nn.Module):
    """K prototypes of patches for each mode, and the scale of distances from them at each position.

    Args:
        unused: (J, K), bool: what fills up the prototypes of modes that have fewer.
        center: m (J, C).
        whitening: Σ^{-1/2} (J, C, C).
        mean: μ (J, K, C), whitened.
        scale: c (J, H', W').
    """

    def __init__(self, unused: Tensor, center: Tensor, whitening: Tensor, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.unused = nn.Buffer(unused)
        self.center = nn.Buffer(center)
        self.whitening = nn.Buffer(whitening.contiguous())
        self.mean = nn.Buffer(mean)
        self.scale = nn.Buffer(scale)

    def whiten(self, patches: Tensor, mode: Tensor) -> Tensor:
        """ψ(v) of patches of images with their modes, (B, X, C) and (B,) → (B, X, C)."""
        return (patches - self.of_mode(self.center, mode)[:, None]) @ self.of_mode(self.whitening, mode).mT

    def nearest(self, patches: Tensor, mode: Tensor) -> Nearest:
        """The nearest prototype, (B, X, C) and modes (B,) → …; up to a constant −log Σ_k N(ψ(v); μ_k, s² I), s → 0."""
        psi = self.whiten(patches, mode)
        mean, unused = self.of_mode(self.mean, mode), self.of_mode(self.unused, mode)
        offset = mean.square().sum(2).masked_fill(unused, torch.inf)[:, None]
        distance, number = (offset - 2 * psi @ mean.mT).min(2)
        return Nearest(psi, (distance + psi.square().sum(2)).clamp_min(0), number)

    def energy(self, nearest: Nearest, mode: Tensor) -> Tensor:
        """‖ψ(v) − μ_{c*}‖² / (C c_j(x)), (B, X)."""
        return nearest.square / nearest.psi.shape[2] / self.of_mode(self.scale, mode).flatten(1)

    def squares(self, nearest: Nearest, mode: Tensor, scale: Tensor) -> Tensor:
        """(ψ(v) − μ_{c*})² / (C c_j(x)) by channel, with c_j(x) of these patches (B, X): (B, X, C)."""
        mean = self.of_mode(self.mean, mode).expand(len(nearest.psi), -1, -1)
        chosen = mean.gather(1, nearest.number[..., None].expand_as(nearest.psi))
        return (nearest.psi - chosen).square() / (nearest.psi.shape[2] * scale[..., None])

    @staticmethod
    def of_mode(table: Tensor, mode: Tensor) -> Tensor:
        """Rows of a table (J, …) by mode (B, …); a single row is not copied for each image."""
        return table if len(table) == 1 else table[mode]


def top_number(share: float, positions: int) -> int:
    """How many positions are averaged."""
    return max(1, int(share * positions))


def top_positions(energy: Tensor, share: float) -> Tensor:
    """The positions in the top share of each image, (B, X) → (B, k)."""
    return energy.topk(top_number(share, energy.shape[1]), dim=1, sorted=False).indices


def position_scale(energy: Tensor, mode: Tensor, n_modes: int) -> Tensor:
    """The scale c of each mode and position from the energy of unseen normals, (n, H', W'), modes (n,) → (J, H', W').

    c_j(x) = (q_j(x) + mean of q_j) / 2 with q_j(x) the 0.9 quantile of the mode's normals there: where normals vary, a
    distance means less. Half of it is the same everywhere, for objects that lie in other places in each image.
    """
    scale = []
    for j in range(n_modes):
        own = energy[mode == j] if (mode == j).any() else energy
        quantile = own.quantile(QUANTILE, dim=0)
        scale.append((quantile + quantile.mean()) / 2)
    return torch.stack(scale).clamp_min(1e-6)


def smooth(maps: Tensor) -> Tensor:
    """Each position averaged with its neighbours, as a patch a little larger than the layer's stride.

    Two products with banded matrices: on a CPU faster than pooling with windows that overlap.
    """
    height, width = (_band(side, maps.device) for side in maps.shape[2:])
    return height @ (maps.float() @ width.T)


def _band(side: int, device: torch.device) -> Tensor:
    """Rows that average a position with its one or two neighbours, (side, side)."""
    position = torch.arange(side, device=device)
    near = ((position[:, None] - position).abs() <= 1).float()
    return near / near.sum(1, keepdim=True)


def to_patches(maps: Tensor) -> Tensor:
    """The smoothed patches of images, (B, C, H', W') → (B, X, C) with X = H' · W'."""
    return smooth(maps).flatten(2).mT
