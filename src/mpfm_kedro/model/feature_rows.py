"""Features of some images, as every method reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGES_AT_ONCE = 256


@dataclass(frozen=True)
class FeatureRows:
    """Features of some images or views.

    Args:
        pooled: stored pooled statistics (n, d), fp32.
        maps: stored maps of all rows, memory-mapped (rows, C, H', W'), fp16.
        rows: the row of each image in ``maps`` (n,).
        source: the sample that each image was made of (n,).
    """

    pooled: np.ndarray
    maps: np.ndarray
    rows: np.ndarray
    source: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: np.ndarray) -> FeatureRows:
        """Some of the images."""
        return FeatureRows(self.pooled[index], self.maps, self.rows[index], self.source[index])

    def map_batches(self) -> Iterator[tuple[slice, Tensor]]:
        """The maps of all images, a bounded number at once, with the slice that they are."""
        for start in range(0, len(self), IMAGES_AT_ONCE):
            piece = slice(start, start + IMAGES_AT_ONCE)
            yield piece, self.map_batch(piece)

    def map_batch(self, index: Any = slice(None)) -> Tensor:
        """Maps of some of the images, (B, C, H', W'), fp16."""
        return torch.from_numpy(np.ascontiguousarray(self.maps[self.rows[index]]))
