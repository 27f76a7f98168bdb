"""Fitting the prototypes of patches: of all normals, and without each of some folds of them.

Patches are read and smoothed once for all fits where they fit in memory, and their first two moments are summed once
for every group of normals that the same fits learn from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, FeatureRows
from mpfm_kedro.detectors.mpfm.patches import PatchPrototypes, position_scale, to_patches, top_positions

SHRINKAGE = 0.1
CANDIDATES = 40_000  # patches of a mode that prototypes are chosen from
PROJECTED = 32  # dimensions in which candidates are compared
ROUNDING = 1e-5  # squared distances of equal points, against their squares, in single precision


class SmoothedPatches:
    """The smoothed patches of n images at X positions, (n, X, C) = ``shape``; they are given out on a device.

    They are cached where they fit in so many bytes of memory, not of the device, and else made again when needed.
    """

    def __init__(self, rows: FeatureRows, device: torch.device, memory: int) -> None:
        channels, *self.map_shape = rows.maps.shape[1:]
        self.shape = len(rows), int(np.prod(self.map_shape)), channels
        self.device, self._rows, self._cached = device, rows, None
        if int(np.prod(self.shape)) * torch.float.itemsize <= memory:
            cached = torch.empty(self.shape)
            for part in rows.slices(IMAGES_IN_CACHE):
                cached[part] = self._smoothed(part).cpu()
            self._cached = cached

    def batches(self, images: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Some of the images, in ascending order, in small batches: their numbers (B,) and patches (B, X, C)."""
        for part in self._rows.slices(IMAGES_IN_CACHE):
            chosen = images[slice(*np.searchsorted(images, [part.start, part.stop]))]
            if len(chosen):
                batch = self._smoothed(part) if self._cached is None else self._cached[part]
                whole = len(chosen) == len(batch)
                yield chosen, (batch if whole else batch[chosen - part.start]).to(self.device)

    def take(self, image: np.ndarray, position: np.ndarray) -> Tensor:
        """Some of the patches, by ascending image (m,) and position (m,): (m, C)."""
        taken = []
        for images, batch in self.batches(np.unique(image)):
            inside = slice(*np.searchsorted(image, [images[0], images[-1] + 1]))
            row = np.searchsorted(images, image[inside])
            taken.append(batch[torch.from_numpy(row), torch.from_numpy(position[inside])])
        return torch.cat(taken)

    def _smoothed(self, part: slice) -> Tensor:
        """The patches of consecutive images, (B, X, C)."""
        return to_patches(self._rows.map_batch(part).to(self.device)).contiguous()


class Moments(NamedTuple):
    """Sums over patches of each of some groups, in fp64."""

    number: Tensor  # of patches (…,)
    total: Tensor  # Σ v (…, C)
    products: Tensor  # Σ v vᵀ (…, C, C)

    @classmethod
    def of(cls, patches: SmoothedPatches, group: np.ndarray, n_groups: int) -> Moments:
        """Of the images with their groups (n,)."""
        channels = patches.shape[2]
        shapes = (n_groups,), (n_groups, channels), (n_groups, channels, channels)
        moments = cls(*(torch.zeros(shape, dtype=torch.double) for shape in shapes))
        for images, batch in patches.batches(np.arange(len(group))):
            of_batch = torch.from_numpy(group[images])
            for g in of_batch.unique().tolist():
                v = batch[of_batch.to(batch.device) == g].flatten(0, 1)
                moments.number[g] += len(v)
                moments.total[g] += v.sum(0).double().cpu()
                moments.products[g] += (v.T @ v).double().cpu()
        return moments

    def whitening(self) -> tuple[Tensor, Tensor]:
        """Mean (J, C) and ((1 − α) Σ + α (tr Σ / C) I)^{-1/2} (J, C, C) of J groups; an empty one has those of all."""
        empty = (self.number == 0).double()
        number = self.number + empty * self.number.sum()
        total = self.total + empty[:, None] * self.total.sum(0)
        products = self.products + empty[:, None, None] * self.products.sum(0)
        mean = total / number[:, None]
        covariance = products / number[:, None, None] - mean[:, :, None] * mean[:, None, :]
        level = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
        variance, basis = torch.linalg.eigh(covariance)
        shrunk = (1 - SHRINKAGE) * variance.clamp_min(0) + SHRINKAGE * level[:, None]
        return mean.float(), (basis * shrunk.rsqrt()[:, None] @ basis.mT).float()


def fit_patch_prototypes(
    patches: SmoothedPatches, kept: np.ndarray, mode: np.ndarray, n_modes: int, n_prototypes: int, seed: int
) -> list[PatchPrototypes]:
    """Fit S times, each on some of the normals: whitening, candidates, prototypes; the scale is 1.

    Each mode gets its share of the prototypes. A mode without normals is fitted to all of them.

    Args:
        patches: of n normals.
        kept: which normals each fit learns from (S, n), bool; the last one those that candidates are weighed by.
        mode: of the normals (n,).
        n_modes: J.
        n_prototypes: K, of all modes together.
        seed: of candidates and projection.
    """
    patterns, group = np.unique(kept, axis=1, return_inverse=True)  # normals that the same fits learn from
    moments = Moments.of(patches, group * n_modes + mode, patterns.shape[1] * n_modes)
    transports = []
    for learns in torch.from_numpy(patterns):
        sums = (value.unflatten(0, (-1, n_modes))[learns].sum(0) for value in moments)
        transports.append(Moments(*sums).whitening())
    weight = _squared_norms(patches, mode, *transports[-1])
    fits = []
    for learns, (center, whitening) in zip(kept, transports, strict=True):
        images = np.flatnonzero(learns)
        share = np.bincount(mode[images], minlength=n_modes) / len(images)
        number = np.maximum(1, np.round(n_prototypes * share)).astype(int)
        chosen = []
        for j in range(n_modes):
            of_mode = images[mode[images] == j] if (mode[images] == j).any() else images
            psi = _candidates(patches, of_mode, weight[of_mode], center[j], whitening[j], seed)
            chosen.append(_choose(psi, int(number[j]), seed).cpu())
        mean = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        unused = torch.arange(mean.shape[1]) >= torch.tensor([len(points) for points in chosen])[:, None]
        scale = torch.ones(n_modes, *patches.map_shape)
        fits.append(PatchPrototypes(unused=unused, center=center, whitening=whitening, mean=mean, scale=scale))
    return fits


@torch.no_grad()
def held_out_squares(
    prototypes: list[PatchPrototypes], patches: SmoothedPatches, fold: np.ndarray, mode: Tensor, top_share: float
) -> Tensor:
    """Give all prototypes the scale that held-out normals need at each position; their residuals by it, (n, C).

    The residuals are squared, by channel, and averaged over the top share of the positions. The last prototypes are
    those of all normals, the others those without each of the folds (n,).
    """

    def batches() -> Iterator[tuple[PatchPrototypes, Tensor, Tensor, Tensor]]:
        for number, without_fold in enumerate(prototypes[:-1]):
            without_fold.to(patches.device)
            for images, batch in patches.batches(np.flatnonzero(fold == number)):
                index = torch.from_numpy(images)
                yield without_fold, index, batch, mode[index].to(patches.device)

    n, positions, channels = patches.shape
    energy, squares = torch.empty(n, positions), torch.empty(n, channels)
    for without_fold, images, batch, of_images in batches():
        energy[images] = without_fold.squares(batch, of_images).sum(2).cpu()
    scale = position_scale(energy.view(n, *patches.map_shape), mode, len(prototypes[-1].center))
    for fitted in prototypes:
        fitted.scale.copy_(scale)
    top = top_positions(energy / scale[mode].flatten(1), top_share)
    for without_fold, images, batch, of_images in batches():
        position = top[images].to(patches.device)
        at_top = batch.take_along_dim(position[..., None], 1)
        squares[images] = without_fold.squares(at_top, of_images, position).mean(1).cpu()
    return squares


def _squared_norms(patches: SmoothedPatches, mode: np.ndarray, center: Tensor, whitening: Tensor) -> np.ndarray:
    """‖ψ(v)‖² of every patch, (n, X)."""
    center, whitening = center.to(patches.device), whitening.to(patches.device)
    squares = np.empty(patches.shape[:2], dtype=np.float32)
    for images, batch in patches.batches(np.arange(len(mode))):
        for j in np.unique(mode[images]):
            of_mode = mode[images] == j
            psi = (batch[torch.from_numpy(of_mode).to(batch.device)] - center[j]) @ whitening[j].T
            squares[images[of_mode]] = psi.square().sum(2).cpu().numpy()
    return squares


def _candidates(
    patches: SmoothedPatches, images: np.ndarray, weight: np.ndarray, center: Tensor, whitening: Tensor, seed: int
) -> Tensor:
    """ψ(v) of patches of some images (m,), drawn with probability ∝ weight (m, X): unusual ones are likelier."""
    chance = weight.ravel().astype(np.float64) + 1e-12
    drawn = np.random.default_rng(seed).choice(
        len(chance), min(CANDIDATES, len(chance)), replace=False, p=chance / chance.sum()
    )
    image, position = np.divmod(np.sort(drawn), patches.shape[1])
    return (patches.take(images[image], position) - center.to(patches.device)) @ whitening.T.to(patches.device)


def _choose(psi: Tensor, number: int, seed: int) -> Tensor:
    """The prototypes among candidates (m, C), which are compared in a random projection, (number, C)."""
    projection = torch.randn(psi.shape[1], PROJECTED, generator=torch.Generator().manual_seed(seed)) / PROJECTED**0.5
    return psi[k_centre(psi @ projection.to(psi.device), number)]


def k_centre(points: Tensor, number: int) -> Tensor:
    """Positions of points (n, p), each the farthest from those before it; the first is the one nearest to zero.

    Fewer than ``number`` where all others repeat one that was chosen.
    """
    square, double = points.square().sum(1), 2 * points
    distance = torch.full_like(square, torch.inf)
    chosen = [int(square.argmin())]
    while len(chosen) < number:
        last = chosen[-1]
        distance = torch.minimum(distance, square - double @ points[last] + square[last])
        distance[last] = 0
        farthest = int(distance.argmax())
        if distance[farthest] <= ROUNDING * square[farthest]:
            break
        chosen.append(farthest)
    return torch.tensor(chosen, device=points.device)
