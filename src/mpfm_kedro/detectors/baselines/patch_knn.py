"""PatchCore's idea on stored maps: how far the strangest patch is from any patch of the normals."""

import math
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Baseline, Context, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput, one_if_constant
from mpfm_kedro.detectors.mpfm.patches import k_centre, to_patches

CANDIDATES = 20000
CORESET = 2000
PROJECTED = 64


class PatchNeighbours(Baseline):
    """max over positions of the distance to the nearest patch of the coreset.

    Patches are positions of the maps averaged with their neighbours, standardised by channel on the normals. The
    coreset is a greedy k-centre selection on a random projection, among patches drawn evenly from all normals.
    """

    name = "patch-kNN"
    supervised = False
    random = True
    budget = "nothing is fitted: 2,000 patches of the normals are kept"

    standardise: StandardisedInput
    coreset: Tensor  # (k, C)

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Select the coreset."""
        patches = self._draw(data.normals, np.random.default_rng(seed)).to(context.device)
        spread = one_if_constant(patches.std(0, correction=0))
        self.standardise = StandardisedInput("maps", patches.mean(0), spread)
        patches = self.standardise(patches)
        generator = torch.Generator().manual_seed(seed)
        projected = patches @ torch.randn(patches.shape[1], PROJECTED, generator=generator).to(context.device)
        first = projected[(projected - projected.mean(0)).square().sum(1).argmax()]
        self.coreset = nn.Buffer(patches[k_centre(projected - first, CORESET)])  # it begins nearest to zero
        return self

    def forward(self, maps: Tensor) -> Tensor:
        """The largest distance in each image, (B, C, H', W') → (B,)."""
        patches = self.standardise(to_patches(maps).mT).flatten(0, -2)
        return torch.cdist(patches, self.coreset).amin(1).view(len(maps), -1).amax(1)

    def bytes_per_image(self, rows: FeatureRows) -> int:
        """The table of distances, (H' · W', k)."""
        return math.prod(rows.maps.shape[2:]) * CORESET * torch.float.itemsize

    def _draw(self, rows: FeatureRows, rng: np.random.Generator) -> Tensor:
        """About as many patches from each image, ``CANDIDATES`` or a few more at most, (n, C)."""
        positions = math.prod(rows.maps.shape[2:])
        per_image = min(positions, -(-CANDIDATES // len(rows)))
        drawn = []
        for part in rows.slices(bytes_per_image=self.bytes_per_image(rows)):
            patches = to_patches(rows.map_batch(part))
            index = rng.permuted(np.tile(np.arange(positions), (len(patches), 1)), axis=1)[:, :per_image]
            drawn.append(patches[torch.arange(len(patches))[:, None], torch.from_numpy(index)].flatten(0, 1))
        return torch.cat(drawn)
