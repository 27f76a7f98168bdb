"""Features of some images, as every detector reads them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.store import StoredRows

IMAGES_PER_BATCH = 64
IMAGES_IN_CACHE = 8  # what is made of so few maps stays in the cache of the processor
BYTES_PER_BATCH = 64 << 20


@dataclass(frozen=True)
class FeatureRows:
    """Features of some images or views."""

    pooled: np.ndarray  # stored pooled statistics (n, d), fp32
    maps: np.ndarray | StoredRows  # stored maps of all rows, memory-mapped (rows, C, H', W'), fp16
    rows: np.ndarray  # the row of each image in ``maps`` (n,)
    source: np.ndarray  # the sample that each image comes from (n,)
    others: tuple[Self, ...] = ()  # the same images in the other backbones

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes_per_map(self) -> int:
        """Stored size of one map."""
        return math.prod(self.maps.shape[1:]) * self.maps.itemsize

    def take(self, index: np.ndarray) -> Self:
        """Some of the images."""
        others = tuple(other.take(index) for other in self.others)
        return replace(self, pooled=self.pooled[index], rows=self.rows[index], source=self.source[index], others=others)

    def of_backbone(self, number: int) -> Self:
        """The same images in one of the backbones, 0 is the first; that backbone alone."""
        return replace((self, *self.others)[number], others=())

    def slices(self, at_most: int = IMAGES_PER_BATCH, bytes_per_image: int | None = None) -> Iterator[slice]:
        """All images in consecutive batches of at least one, bounded in images and in bytes (by default of maps)."""
        size = max(1, min(at_most, BYTES_PER_BATCH // (bytes_per_image or self.bytes_per_map)))
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))

    def map_batches(self, device: torch.device | str = "cpu") -> Iterator[tuple[slice, Tensor]]:
        """The maps of all images in small batches on a device, each with its slice."""
        for part in self.slices(IMAGES_IN_CACHE):
            yield part, self.map_batch(part).to(device)

    def map_batch(self, index: Any = slice(None)) -> Tensor:
        """Maps of some of the images, (B, C, H', W'), fp16."""
        return torch.from_numpy(np.ascontiguousarray(self.maps[self.rows[index]]))
