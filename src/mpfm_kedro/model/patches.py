"""Modes of the normals' patches: the closed-form start of the local score.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. Each mode of the
normal images has its own Gaussian over the patches v of its images, the same at every position.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

SHRINKAGE = 0.01


class PatchModes(nn.Module):
    """J Gaussians N(m_j, Σ_j) over patches, kept as whitenings.

    Args:
        mean: m (J, C).
        whitening: W (J, C, C) with Σ_j^{-1} = W_j W_jᵀ.
    """

    mean: Tensor
    whitening: Tensor

    def __init__(self, mean: Tensor, whitening: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.float())
        self.register_buffer("whitening", whitening.float().contiguous())

    def energy(self, maps: Tensor, mode: Tensor) -> Tensor:
        """(v − m_j)ᵀ Σ_j^{-1} (v − m_j) / C at each position: (B, C, H', W') of modes j (B,) → (B, H', W')."""
        return self.energy_of_smoothed(smooth(maps), mode)

    def energy_of_smoothed(self, smoothed: Tensor, mode: Tensor) -> Tensor:
        """The same of maps that are smoothed already."""
        patches = smoothed.flatten(2)
        energy = patches.new_empty(len(patches), patches.shape[2])
        for j in mode.unique().tolist():
            own = mode == j
            energy[own] = (self.whitening[j].T @ (patches[own] - self.mean[j][:, None])).square().mean(1)
        return energy.view(len(smoothed), *smoothed.shape[2:])


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


def fit_patch_modes(batches: Iterable[tuple[Tensor, Tensor]], n_modes: int) -> PatchModes:
    """Fit on maps of normals (B, C, H', W') with their modes (B,), batch after batch."""
    count = torch.zeros(n_modes, dtype=torch.float64)
    total, products = None, None
    for maps, mode in batches:
        patches = smooth(maps).flatten(2).transpose(1, 2)
        if total is None or products is None:
            total = torch.zeros(n_modes, patches.shape[2], dtype=torch.float64)
            products = torch.zeros(n_modes, patches.shape[2], patches.shape[2], dtype=torch.float64)
        for j in mode.unique().tolist():
            own = patches[mode == j].flatten(0, 1)
            count[j] += len(own)
            total[j] += own.double().sum(0)
            products[j] += (own.T @ own).double()
    assert total is not None and products is not None
    mean = total / count[:, None]
    covariance = products / count[:, None, None] - mean[:, :, None] * mean[:, None, :]
    level = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    identity = torch.eye(mean.shape[1], dtype=torch.float64)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * level[:, None, None] * identity
    return PatchModes(mean, torch.linalg.cholesky(torch.linalg.inv(shrunk)))
