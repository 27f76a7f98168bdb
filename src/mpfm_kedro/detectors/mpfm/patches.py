"""Prototypes of the normals' patches: a flow in closed form, and a mixture of prototypes where it ends.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. The patches v of each
mode of the normal images are transported by ψ(v) = Σ^{-1/2} (v − m), which whitens them. There the prototypes μ_k are
patches of normals, chosen one after the other, each the farthest from those before it (the greedy form of K-means++):
what is rare among normals has prototypes, too, and what is common does not take them all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

QUANTILE = 0.9
PATCHES_AT_ONCE = 8192


class PatchPrototypes(nn.Module):
    """K prototypes of patches for each mode, and the scale of distances from them at each position.

    Args:
        number: prototypes of each mode (J,); what stands behind them in ``mean`` is not used.
        center: m (J, C).
        whitening: Σ^{-1/2} (J, C, C).
        mean: μ (J, K, C), whitened.
        scale: c (J, H', W').
    """

    number: Tensor
    center: Tensor
    whitening: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, number: Tensor, center: Tensor, whitening: Tensor, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("number", number.long())
        self.register_buffer("center", center.float())
        self.register_buffer("whitening", whitening.float().contiguous())
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", scale.float())

    def energy(self, smoothed: Tensor, mode: Tensor) -> Tensor:
        """min_k ‖ψ(v) − μ_k‖² / (C c_j(x)): (B, C, H', W') and modes (B,) → (B, H', W').

        Up to a constant it is −log Σ_k N(ψ(v); μ_k, s² I) for small s: the nearest prototype decides.
        """
        energy = smoothed.new_empty(len(smoothed), *smoothed.shape[2:])
        for j in mode.unique().tolist():
            prototypes = self.mean[j, : self.number[j]]
            own = [
                nearest_square(self.whiten(j, piece), prototypes)
                for piece in to_patches(smoothed[mode == j]).split(PATCHES_AT_ONCE)
            ]
            energy[mode == j] = torch.cat(own).view(-1, *smoothed.shape[2:]) / smoothed.shape[1]
        return energy / self.scale[mode]

    def whiten(self, j: int, patches: Tensor) -> Tensor:
        """ψ(v) of patches of mode j, (n, C) → (n, C)."""
        return (patches - self.center[j]) @ self.whitening[j].T


def nearest_square(x: Tensor, points: Tensor) -> Tensor:
    """Squared distance to the nearest of K points (K, C): (n, C) → (n,)."""
    nearest = (points.square().sum(1) - 2 * x @ points.T).amin(1)
    return (nearest + x.square().sum(1)).clamp_min(0)


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


def to_patches(smoothed: Tensor) -> Tensor:
    """All patches of all images, (B, C, H', W') → (B · H' · W', C)."""
    return smoothed.flatten(2).transpose(1, 2).flatten(0, 1)
