"""Groups of the normals' patches: the closed-form start of the local score.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. The patches v of each
mode of the normal images fall into groups (cell, busbar, rim, background), each a Gaussian N(m_g, Σ_g). At position x
distances are divided by c_j(x), those of the mode's normals there: where they vary, a distance means less than where
they are all alike.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows

SHRINKAGE = 0.01
MAX_GROUPS = 8
PATCHES_PER_CHANNEL = 20  # of a group on average, the smallest at least half; with fewer its covariance says little
CLUSTERED_PATCHES = 20_000  # of each mode, to find the groups by
NORMALS_OF_THE_PRIOR = 100  # with n normals, log c counts n / (n + this) against 0


class PatchGroups(nn.Module):
    """G Gaussians over patches for each mode, and the scale of their distances at each position.

    Args:
        n_groups: groups of each mode (J,); what stands behind them in the other tensors is not used.
        mean: m (J, G, C).
        whitening: W (J, G, C, C) with Σ_g^{-1} = W_gᵀ W_g.
        scale: c (J, H', W').
    """

    n_groups: Tensor
    mean: Tensor
    whitening: Tensor
    scale: Tensor

    def __init__(self, n_groups: Tensor, mean: Tensor, whitening: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("n_groups", n_groups.long())
        self.register_buffer("mean", mean.float())
        self.register_buffer("whitening", whitening.float().contiguous())
        self.register_buffer("scale", scale.float())

    def energy(self, smoothed: Tensor, mode: Tensor) -> Tensor:
        """(v − m_g)ᵀ Σ_g^{-1} (v − m_g) / (C c_j(x)), g the nearest group: (B, C, H', W'), modes (B,) → (B, H', W')."""
        energy = smoothed.new_empty(len(smoothed), *smoothed.shape[2:])
        for j in mode.unique().tolist():
            patches = _patches(smoothed[mode == j])
            group = nearest_group(patches, self.mean[j, : self.n_groups[j]])
            own = patches.new_empty(len(patches))
            for g in group.unique().tolist():
                whitened = (patches[group == g] - self.mean[j, g]) @ self.whitening[j, g].T
                own[group == g] = whitened.square().mean(1)
            energy[mode == j] = own.view(-1, *smoothed.shape[2:])
        return energy / self.scale[mode]


def nearest_group(patches: Tensor, mean: Tensor) -> Tensor:
    """The nearest of G means (G, C) for each patch, (n, C) → (n,)."""
    return (mean.square().sum(1) - 2 * patches @ mean.T).argmin(1)


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


def fit_patch_groups(normals: FeatureRows, mode: np.ndarray, seed: int) -> PatchGroups:
    """Fit on normals with their modes (n,), some images at once: groups, then covariances, then scales."""
    modes = torch.from_numpy(mode)
    means = _group_means(normals, mode, seed)
    n_groups = torch.tensor([len(mean) for mean in means])
    n_modes, most, channels = len(means), int(n_groups.max()), normals.maps.shape[1]
    mean = torch.zeros(n_modes, most, channels)
    count = torch.zeros(n_modes, most, dtype=torch.float64)
    products = torch.zeros(n_modes, most, channels, channels, dtype=torch.float64)
    for j, own in enumerate(means):
        mean[j, : len(own)] = own
    for piece, maps in normals.map_batches():
        smoothed = smooth(maps)
        for j in modes[piece].unique().tolist():
            patches = _patches(smoothed[modes[piece] == j])
            group = nearest_group(patches, means[j])
            for g in group.unique().tolist():
                offset = patches[group == g] - mean[j, g]
                count[j, g] += len(offset)
                products[j, g] += (offset.T @ offset).double()
    covariance = products / count.clamp_min(1)[..., None, None]
    level = covariance.diagonal(dim1=2, dim2=3).mean(2).clamp_min(1e-6)[..., None, None]
    identity = torch.eye(channels, dtype=torch.float64).expand_as(covariance)
    root = torch.linalg.cholesky((1 - SHRINKAGE) * covariance + SHRINKAGE * level * identity)
    whitening = torch.linalg.solve_triangular(root, identity, upper=False)
    energy = torch.zeros(n_modes, *normals.maps.shape[2:])
    groups = PatchGroups(n_groups, mean, whitening, torch.ones_like(energy))
    for piece, maps in normals.map_batches():
        energy.index_add_(0, modes[piece], groups.energy(smooth(maps), modes[piece]))
    size = modes.bincount()[:, None, None]
    scale = (energy / size).clamp_min(1e-6) ** (size / (size + NORMALS_OF_THE_PRIOR))
    return PatchGroups(n_groups, mean, whitening, scale)


def _group_means(normals: FeatureRows, mode: np.ndarray, seed: int) -> list[Tensor]:
    """K-means on patches of some images of each mode, as many groups as all of its patches allow: (G_j, C) each."""
    rng = np.random.default_rng(seed)
    channels, positions = normals.maps.shape[1], int(np.prod(normals.maps.shape[2:]))
    means = []
    for j in range(mode.max() + 1):
        images = np.flatnonzero(mode == j)
        n_groups = min(MAX_GROUPS, max(1, len(images) * positions // (PATCHES_PER_CHANNEL * channels)))
        some = rng.permutation(images)[: -(-CLUSTERED_PATCHES // positions)]
        patches = _patches(smooth(normals.map_batch(np.sort(some))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct patches than groups
            centers = KMeans(n_groups, n_init=1, random_state=seed).fit(patches.numpy()).cluster_centers_
        least = PATCHES_PER_CHANNEL / 2 * channels * len(some) / len(images)
        means.append(_without_small_groups(torch.from_numpy(centers), patches, least))
    return means


def _without_small_groups(mean: Tensor, patches: Tensor, least: float) -> Tensor:
    """Means (G, C) without those that are nearest to too few patches (n, C), the smallest first."""
    while len(mean) > 1:
        size = nearest_group(patches, mean).bincount(minlength=len(mean))
        if size.min() >= least:
            break
        mean = mean[torch.arange(len(mean)) != size.argmin()]
    return mean


def _patches(smoothed: Tensor) -> Tensor:
    """All patches of all images, (B, C, H', W') → (B · H' · W', C)."""
    return smoothed.flatten(2).transpose(1, 2).flatten(0, 1)
