"""Prototypes of the normals' patches: a flow in closed form, and a mixture of prototypes where it ends.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. The patches v of each
mode of the normal images are transported by ψ(v) = Σ^{-1/2} (v − m), which whitens them. There the prototypes μ_k are
patches of normals, chosen one after the other, each the farthest from those before it (the greedy form of K-means++):
what is rare among normals has prototypes, too, and what is common does not take them all.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows

SHRINKAGE = 0.1
CANDIDATES = 40_000  # patches of a mode that prototypes are chosen from
PROJECTED = 32  # dimensions in which candidates are compared
QUANTILE = 0.9
ROUNDING = 1e-5  # squared distances of equal points, against their squares, in single precision
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


def fit_patch_prototypes(
    normals: FeatureRows, mode: np.ndarray, n_modes: int, n_prototypes: int, seed: int, device: torch.device
) -> PatchPrototypes:
    """Fit on normals with their modes (n,), some images at once: whitening, candidates, prototypes; the scale is 1.

    Each mode gets its share of the prototypes. A mode without normals is fitted to all of them.
    """
    channels = normals.maps.shape[1]
    center, whitening = _whitening(normals, torch.from_numpy(mode), n_modes, device)
    ones = torch.ones(n_modes, *normals.maps.shape[2:])
    wanted = np.maximum(1, np.round(n_prototypes * np.bincount(mode, minlength=n_modes) / len(mode))).astype(int)
    groups = PatchPrototypes(torch.from_numpy(wanted), center, whitening, torch.zeros(n_modes, 1, channels), ones).to(
        device
    )
    generator = torch.Generator().manual_seed(seed)
    projection = torch.randn(channels, PROJECTED, generator=generator).to(device) / PROJECTED**0.5
    chosen = []
    for j in range(n_modes):
        own = normals.take(np.flatnonzero(mode == j)) if (mode == j).any() else normals
        candidates = _candidates(groups, j, own, np.random.default_rng(seed))
        chosen.append(candidates[farthest_first(candidates @ projection, int(wanted[j]))].cpu())
    number = torch.tensor([len(points) for points in chosen])
    mean = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
    return PatchPrototypes(number, center, whitening, mean, ones)


def farthest_first(points: Tensor, number: int) -> Tensor:
    """Positions of points (n, p), each the farthest from those before it; the first is the one nearest to zero.

    Fewer than ``number`` where all others repeat one that was chosen.
    """
    square = points.square().sum(1)
    distance = torch.full_like(square, torch.inf)
    chosen = [int(square.argmin())]
    while len(chosen) < number:
        last = chosen[-1]
        distance = torch.minimum(distance, square - 2 * points @ points[last] + square[last])
        distance[last] = 0
        farthest = int(distance.argmax())
        if distance[farthest] <= ROUNDING * square[farthest]:
            break
        chosen.append(farthest)
    return torch.tensor(chosen, device=points.device)


def to_patches(smoothed: Tensor) -> Tensor:
    """All patches of all images, (B, C, H', W') → (B · H' · W', C)."""
    return smoothed.flatten(2).transpose(1, 2).flatten(0, 1)


def _whitening(normals: FeatureRows, mode: Tensor, n_modes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean (J, C) and ((1 − α) Σ + α (tr Σ / C) I)^{-1/2} (J, C, C) of each mode's patches."""
    channels = normals.maps.shape[1]
    count = torch.zeros(n_modes, dtype=torch.float64)
    total = torch.zeros(n_modes, channels, dtype=torch.float64)
    products = torch.zeros(n_modes, channels, channels, dtype=torch.float64)
    for part, maps in normals.map_batches():
        smoothed = smooth(maps.to(device))
        for j in mode[part].unique().tolist():
            patches = to_patches(smoothed[(mode[part] == j).to(device)])
            count[j] += len(patches)
            total[j] += patches.sum(0).double().cpu()
            products[j] += (patches.T @ patches).double().cpu()
    empty = count == 0
    count[empty], total[empty], products[empty] = count.sum(), total.sum(0), products.sum(0)
    mean = total / count[:, None]
    covariance = products / count[:, None, None] - mean[:, :, None] * mean[:, None, :]
    level = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    variance, basis = torch.linalg.eigh(covariance)
    shrunk = (1 - SHRINKAGE) * variance.clamp_min(0) + SHRINKAGE * level[:, None]
    return mean.float(), (basis * shrunk.rsqrt()[:, None] @ basis.mT).float()


def _candidates(groups: PatchPrototypes, j: int, normals: FeatureRows, rng: np.random.Generator) -> Tensor:
    """Whitened patches of normals of mode j, drawn with probability ∝ ‖ψ(v)‖², the more unusual the likelier."""
    positions, device = int(np.prod(normals.maps.shape[2:])), groups.center.device
    squares = [
        groups.whiten(j, to_patches(smooth(maps.to(device)))).square().sum(1).double().cpu()
        for _, maps in normals.map_batches()
    ]
    weight = torch.cat(squares).numpy() + 1e-12
    size = min(CANDIDATES, len(weight))
    drawn = np.sort(rng.choice(len(weight), size, replace=False, p=weight / weight.sum()))
    found = []
    for part, maps in normals.map_batches():
        first, last = np.searchsorted(drawn, [part.start * positions, part.stop * positions])
        own = torch.from_numpy(drawn[first:last] - part.start * positions).to(device)
        found.append(groups.whiten(j, to_patches(smooth(maps.to(device)))[own]))
    return torch.cat(found)
