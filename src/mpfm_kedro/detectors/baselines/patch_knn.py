"""PatchCore's idea on stored maps: how far the strangest patch is from any patch of the normals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, Detector, Scores, TrainingData
from mpfm_kedro.detectors.mpfm.patches import smooth

CANDIDATES = 20000
CORESET = 2000
PROJECTED = 64
IMAGES_PER_BATCH = 32


class PatchNeighbours(Detector):
    """max over positions of the distance to the nearest patch of the coreset.

    Patches are positions of the maps averaged with their neighbours, standardised by channel on the normals. The
    coreset is a greedy k-centre selection on a random projection, among patches drawn evenly from all normals.
    """

    name: ClassVar[str] = "patch-kNN"
    supervised: ClassVar[bool] = False
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "nothing is fitted: 2,000 patches of the normals are kept"

    _center: Tensor
    _spread: Tensor
    _coreset: Tensor

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Select the coreset."""
        patches = _draw_patches(data.normals, np.random.default_rng(seed)).to(context.device)
        self._center = patches.mean(0)
        spread = patches.std(0, correction=0)
        self._spread = torch.where(spread > 1e-6, spread, torch.ones_like(spread))
        patches = (patches - self._center) / self._spread
        generator = torch.Generator().manual_seed(seed)
        projection = torch.randn(patches.shape[1], PROJECTED, generator=generator).to(context.device)
        self._coreset = patches[k_centres(patches @ projection, CORESET)]
        return self

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The largest distance in each image."""
        scores = []
        for part in _slices(rows):
            maps = rows.map_batch(part).to(self._coreset.device)
            patches = (smooth(maps).flatten(2).transpose(1, 2) - self._center) / self._spread
            scores.append(nearest(patches.flatten(0, 1), self._coreset).view(len(maps), -1).amax(1))
        return Scores(torch.cat(scores).cpu().numpy())

    def state(self) -> Artefact:
        """Centre (C,), spread (C,) and coreset (k, C)."""
        tensors = {"center": self._center, "spread": self._spread, "coreset": self._coreset}
        return Artefact({name: value.cpu() for name, value in tensors.items()})

    @classmethod
    def restore(cls, state: Artefact, device: torch.device) -> Self:
        """The inverse of ``state``."""
        detector = cls()
        detector._center, detector._spread, detector._coreset = (
            state.tensors[name].clone().to(device) for name in ("center", "spread", "coreset")
        )
        return detector


def _slices(rows: FeatureRows) -> Iterator[slice]:
    """Batches whose table of distances, (B · H' · W', k), is bounded."""
    positions = rows.maps.shape[2] * rows.maps.shape[3]
    return rows.slices(IMAGES_PER_BATCH, positions * CORESET * torch.float.itemsize)


def _draw_patches(rows: FeatureRows, rng: np.random.Generator) -> Tensor:
    """About as many patches from each image, ``CANDIDATES`` or a few more at most, (n, C)."""
    positions = rows.maps.shape[2] * rows.maps.shape[3]
    each = min(positions, -(-CANDIDATES // len(rows)))
    drawn = []
    for part in _slices(rows):
        patches = smooth(rows.map_batch(part)).flatten(2).transpose(1, 2)
        index = rng.permuted(np.tile(np.arange(positions), (len(patches), 1)), axis=1)[:, :each]
        drawn.append(patches[torch.arange(len(patches))[:, None], torch.from_numpy(index)].flatten(0, 1))
    return torch.cat(drawn)


def k_centres(points: Tensor, number: int) -> Tensor:
    """Greedy k-centre of points (n, d): the next is always the one farthest from all chosen; positions (≤ number,)."""
    norm = points.square().sum(1)
    chosen = [int((points - points.mean(0)).square().sum(1).argmax())]
    distance = torch.full_like(norm, torch.inf)
    while len(chosen) < min(number, len(points)):
        last = chosen[-1]
        distance = torch.minimum(distance, norm + norm[last] - 2 * (points @ points[last]))
        distance[last] = -torch.inf  # repeated patches are at distance zero, and rounding may say more
        chosen.append(int(distance.argmax()))
    return torch.tensor(chosen, device=points.device)


def nearest(points: Tensor, reference: Tensor) -> Tensor:
    """Distance of each point (n, d) to its nearest reference (k, d), (n,)."""
    half = torch.addmm(reference.square().sum(1) / 2, points, reference.T, alpha=-1).amin(1)
    return (points.square().sum(1) + 2 * half).clamp_min(0).sqrt()
