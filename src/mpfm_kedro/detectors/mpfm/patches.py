"""Prototypes of the normals' patches: a flow in closed form, and prototypes where it ends.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. The patches v of each
mode of the normal images are transported by ψ(v) = Σ^{-1/2} (v − m), which whitens them. There the prototypes μ_k are
patches of normals, chosen by k-centre: each is the farthest from those before it. So what is rare among normals has
prototypes, too, and what is common does not take them all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpfm_kedro.detectors.mpfm.tensors import TensorModule

QUANTILE = 0.9


class PatchPrototypes(TensorModule):
    """K prototypes of patches for each mode, and the scale of distances from them at each position."""

    unused: Tensor  # (J, K), bool: what fills up the prototypes of modes that have fewer
    center: Tensor  # m (J, C)
    whitening: Tensor  # Σ^{-1/2} (J, C, C)
    mean: Tensor  # μ (J, K, C), whitened
    scale: Tensor  # c (J, H', W')

    def squares(self, patches: Tensor, mode: Tensor, position: Tensor | None = None) -> Tensor:
        """(ψ(v) − μ_{c*})² / (C c_j(x)) by channel (B, X, C); their sum is the energy of a patch.

        The nearest prototype c* is the component of −log Σ_k N(ψ(v); μ_k, s² I) that remains for s → 0.

        Args:
            patches: v (B, X, C).
            mode: j (B,).
            position: x of each patch (B, X); by default all positions in order.
        """
        psi = (patches - of_mode(self.center, mode)[:, None]) @ of_mode(self.whitening, mode).mT
        mean = of_mode(self.mean, mode)
        offset = mean.square().sum(2).masked_fill(of_mode(self.unused, mode), torch.inf)[:, None]
        nearest = (offset - 2 * psi @ mean.mT).argmin(2)
        chosen = mean.expand(len(psi), -1, -1).gather(1, nearest[..., None].expand_as(psi))
        scale = of_mode(self.scale, mode).flatten(1)
        if position is not None:
            scale = scale.take_along_dim(position, 1)
        return (psi - chosen).square() / (psi.shape[2] * scale[..., None])


def of_mode(table: Tensor, mode: Tensor) -> Tensor:
    """Rows of a table (J, …) by mode (B, …); a single row is not copied for each image."""
    return table if len(table) == 1 else table[mode]


def top_number(share: float, positions: int) -> int:
    """How many positions are averaged."""
    return max(1, int(share * positions))


def top_positions(energy: Tensor, share: float) -> Tensor:
    """The positions in the top share of each image, (B, X) → (B, k)."""
    return energy.topk(top_number(share, energy.shape[1]), dim=1, sorted=False).indices


def mean_of_top(squares: Tensor, share: float) -> Tensor:
    """The squared residuals (B, X, C) by channel, averaged over the positions of the top share of energy, (B, C)."""
    top = top_positions(squares.sum(2), share)[..., None].expand(-1, -1, squares.shape[2])
    return squares.gather(1, top).mean(1)  # take_along_dim would fix the batch size of an export


def position_scale(energy: Tensor, mode: Tensor, n_modes: int) -> Tensor:
    """The scale c of each mode and position from the energy of held-out normals, (n, H', W'), modes (n,) → (J, H', W').

    c_j(x) = (q_j(x) + mean of q_j) / 2 with q_j(x) the 0.9 quantile of the mode's normals there: where normals vary, a
    distance means less. Half of it is the same everywhere, for objects that lie in other places in each image.
    """
    scale = []
    for j in range(n_modes):
        quantile = (energy[mode == j] if (mode == j).any() else energy).quantile(QUANTILE, dim=0)
        scale.append((quantile + quantile.mean()) / 2)
    return torch.stack(scale).clamp_min(1e-6)


def to_patches(maps: Tensor) -> Tensor:
    """Each position averaged with its neighbours, a little more than the layer's stride: (B, C, H', W') → (B, X, C).

    Two products with banded matrices: on a CPU faster than pooling with windows that overlap.
    """
    bands = []
    for side in maps.shape[2:]:
        position = torch.arange(side, device=maps.device)
        near = ((position[:, None] - position).abs() <= 1).float()
        bands.append(near / near.sum(1, keepdim=True))
    height, width = bands
    return (height @ (maps.float() @ width.T)).flatten(2).mT
