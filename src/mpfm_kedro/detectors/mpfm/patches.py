"""Prototypes of the normals' patches: a flow in closed form, and prototypes where it ends.

A defect that is small against the image vanishes in pooled statistics and shows in one patch. The patches v of each
mode of the normal images are transported by ψ(v) = Σ^{-1/2} (v − m), which whitens them. There the prototypes μ_k are
patches of normals, chosen by k-centre: each is the farthest from those before it. So what is rare among normals has
prototypes, too, and what is common does not take them all.

Fits of all normals and of those without each fold share the patches, which are read and smoothed once where they fit
in memory, and their first two moments, which are summed once for every fold.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, FeatureRows
from mpfm_kedro.detectors.mpfm.tensors import TensorModule

QUANTILE = 0.9
SHRINKAGE = 0.1
CANDIDATES = 40_000  # patches of a mode that prototypes are chosen from
PROJECTED = 32  # dimensions in which candidates are compared
ROUNDING = 1e-5  # squared distances of equal points, against their squares, in single precision


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
    position = top_positions(squares.sum(2), share)[..., None].expand(-1, -1, squares.shape[2])
    return squares.gather(1, position).mean(1)  # the exporter to ONNX knows no take_along_dim


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


def moments(patches: SmoothedPatches, group: np.ndarray, n_groups: int) -> Tensor:
    """Σ (v, 1) (v, 1)ᵀ of the patches v of images by their group (n,), (G, C + 1, C + 1) in fp64."""
    sums = torch.zeros(n_groups, patches.shape[2] + 1, patches.shape[2] + 1, dtype=torch.double)
    for images, batch in patches.batches(np.arange(len(group))):
        of_batch = torch.from_numpy(group[images])
        for g in of_batch.unique().tolist():
            v = batch[of_batch.to(batch.device) == g].flatten(0, 1)
            sums[g, :-1, :-1] += (v.T @ v).double().cpu()
            sums[g, -1, :-1] += v.sum(0).double().cpu()
            sums[g, -1, -1] += len(v)
    return sums


def whitening_of(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (J, C) and ((1 − α) Σ + α (tr Σ / C) I)^{-1/2} (J, C, C) by moments; an empty group has those of all."""
    number = sums[:, -1:, -1:]
    averages = torch.where(number > 0, sums / number, sums.sum(0) / number.sum())
    mean = averages[:, -1, :-1]
    covariance = averages[:, :-1, :-1] - mean[:, :, None] * mean[:, None, :]
    level = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    variance, basis = torch.linalg.eigh(covariance)
    shrunk = (1 - SHRINKAGE) * variance.clamp_min(0) + SHRINKAGE * level[:, None]
    return mean.float(), (basis * shrunk.rsqrt()[:, None] @ basis.mT).float()


def fit_patch_prototypes(
    patches: SmoothedPatches, fold: np.ndarray, mode: np.ndarray, n_modes: int, n_prototypes: int, seed: int
) -> list[PatchPrototypes]:
    """Fits without each fold, then of all normals: whitening, candidates, prototypes; the scale is 1.

    Each mode gets its share of the prototypes. A mode without normals is fitted to all of them.

    Args:
        patches: of n normals.
        fold: of the normals (n,).
        mode: of the normals (n,).
        n_modes: J.
        n_prototypes: K, of all modes together.
        seed: of candidates and projection.
    """
    n_folds = fold.max() + 1
    sums = moments(patches, fold * n_modes + mode, n_folds * n_modes).unflatten(0, (-1, n_modes))
    transports = [whitening_of(sums[torch.arange(n_folds) != r].sum(0)) for r in range(n_folds + 1)]
    weight = _squared_norms(patches, mode, *transports[-1])
    fits = []
    for r, (center, whitening) in enumerate(transports):
        images = np.flatnonzero(fold != r)
        share = np.bincount(mode[images], minlength=n_modes) / len(images)
        number = np.maximum(1, np.round(n_prototypes * share)).astype(int)
        chosen = []
        for j in range(n_modes):
            of_mode = images[mode[images] == j] if (mode[images] == j).any() else images
            psi = _candidates(patches, of_mode, weight[of_mode], center[j], whitening[j], seed)
            projection = torch.randn(psi.shape[1], PROJECTED, generator=torch.Generator().manual_seed(seed))
            projected = psi @ (projection / PROJECTED**0.5).to(psi.device)
            chosen.append(psi[k_centre(projected, int(number[j]))].cpu())
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
