"""Centre and spread of features, fitted on training normals."""

from __future__ import annotations

import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.tensors import TensorModule


class Standardiser(TensorModule):
    """z = (pooled − centre) / spread, and the same for each channel of the maps, over all positions."""

    pooled_center: Tensor  # (d,)
    pooled_spread: Tensor  # (d,)
    map_center: Tensor  # (C,)
    map_spread: Tensor  # (C,)

    def z(self, pooled: Tensor) -> Tensor:
        """Standardised pooled statistics, (B, d) → (B, d)."""
        return (pooled - self.pooled_center) / self.pooled_spread

    def patches(self, maps: Tensor) -> Tensor:
        """Standardised patches, (B, C, H', W') → (B, X, C)."""
        return (maps.flatten(2).mT.float() - self.map_center) / self.map_spread

    def z_of(self, rows: FeatureRows) -> Tensor:
        """Standardised pooled statistics of stored features, (n, d)."""
        return self.z(torch.from_numpy(rows.pooled).to(self.pooled_center))


def fit_standardiser(normals: FeatureRows) -> Standardiser:
    """Centre and spread of pooled statistics, and of the map's channels over all positions."""
    mean, square = torch.zeros(2, len(normals), normals.maps.shape[1], dtype=torch.double)
    for part, stored in normals.map_batches():
        maps = stored.float()
        mean[part] = maps.mean((2, 3)).double()
        square[part] = (maps - mean[part, :, None, None].float()).square().mean((2, 3)).double()
    pooled = torch.from_numpy(normals.pooled).double()
    map_spread = (square.mean(0) + mean.var(0, correction=0)).sqrt()
    spreads = pooled.std(0, correction=0), map_spread
    pooled_spread, map_spread = (torch.where(spread > 1e-6, spread, 1.0).float() for spread in spreads)  # or constant
    return Standardiser(
        pooled_center=pooled.mean(0).float(),
        pooled_spread=pooled_spread,
        map_center=mean.mean(0).float(),
        map_spread=map_spread,
    )
