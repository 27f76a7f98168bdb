"""Standardised features, as networks and heads read them."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, IMAGES_PER_BATCH, FeatureRows
from mpfm_kedro.detectors.base import Context, read_stored

LEAST_SPREAD = 0.05
FARTHEST = 1e4  # fits half precision


class StandardisedInput(nn.Module):
    """x = (stored − centre) / spread of each channel, with the channels last; of "pooled" (d,) or "maps" (C,)."""

    def __init__(self, kind: str, center: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.kind = kind
        self.center = nn.Buffer(center)
        self.spread = nn.Buffer(spread)

    @classmethod
    def fit(cls, kind: str, normals: FeatureRows) -> Self:
        """Channels that hardly vary among few normals are not inflated: no spread is less than 5 % of the mean one."""
        center, spread = center_and_spread(kind, normals)
        return cls(kind, center, spread.clamp_min(max(LEAST_SPREAD * float(spread.mean()), 1e-6)))

    def forward(self, stored: Tensor) -> Tensor:
        """(B, d) → (B, d), or (B, C, H', W') → (B, H', W', C)."""
        return (stored.movedim(1, -1).contiguous().float() - self.center) / self.spread

    def read(self, rows: FeatureRows, index: Any) -> Tensor:
        """Some of the rows, within the range of half precision, (B, …, d)."""
        return self(read_stored(self.kind, rows, index).to(self.center.device)).clamp_(-FARTHEST, FARTHEST)


class TrainingInput:
    """The standardised rows of all groups, group after group, in half precision.

    They are cached on the device where batches go, or read from the store and standardised whenever a batch needs
    them; the values are the same. The shape is (n, …, d).
    """

    def __init__(
        self,
        source: StandardisedInput,
        groups: Sequence[FeatureRows],
        batch_size: int,
        device: torch.device,
        *,
        cached: bool,
    ) -> None:
        self._source, self._groups, self.device = source, groups, device
        self._group = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
        self._position = np.concatenate([np.arange(len(rows)) for rows in groups])
        row = source.read(groups[0], slice(1)).shape[1:]
        self.shape = torch.Size([len(self._group), *row])
        self._batch = torch.empty(batch_size, *row, dtype=torch.float, device=device)
        self._values = None
        if cached:
            values = torch.empty(self.shape, dtype=torch.half, device=device)
            for index in torch.arange(self.shape[0]).split(IMAGES_PER_BATCH):
                values[index[0] : index[-1] + 1] = self._read(index)
            self._values = values

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows (B,) in half precision, (B, …, d)."""
        return self._read(index) if self._values is None else self._values.index_select(0, index.to(self.device))

    def batch(self, index: Tensor) -> Tensor:
        """Rows (B,) in single precision, (B, …, d); the next batch overwrites them."""
        return self._batch.copy_(self[index])

    def _read(self, index: Tensor) -> Tensor:
        values = torch.empty(len(index), *self.shape[1:], dtype=torch.half, device=self.device)
        group, position = (of_row[index.cpu().numpy()] for of_row in (self._group, self._position))
        for number in np.unique(group):
            chosen = group == number
            values[chosen] = self._source.read(self._groups[number], position[chosen]).half().to(self.device)
        return values


def training_inputs(
    sources: Sequence[StandardisedInput], groups: Sequence[FeatureRows], batch_size: int, context: Context
) -> list[TrainingInput]:
    """Inputs in batches of one size, cached where all of them fit in half of the memory that may be used."""
    values_per_row = sum(source.read(groups[0], slice(1)).numel() for source in sources)
    needed = sum(map(len, groups)) * values_per_row * torch.half.itemsize
    cached = needed <= context.memory // 2
    return [TrainingInput(source, groups, batch_size, context.device, cached=cached) for source in sources]


def center_and_spread(kind: str, rows: FeatureRows) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel over all rows and positions, (d,) each; in fp64 across images."""
    means, variances = [], []
    for part in rows.slices(IMAGES_IN_CACHE):
        values = read_stored(kind, rows, part).float()
        values = values.view(*values.shape[:2], -1)
        mean = values.mean(2, keepdim=True)
        means.append(mean[..., 0].double())
        variances.append((values - mean).square().mean(2).double())
    within, between = torch.cat(variances).mean(0), torch.cat(means).var(0, correction=0)
    return torch.cat(means).mean(0).float(), (within + between).sqrt().float()


def one_if_constant(spread: Tensor) -> Tensor:
    """A spread by which to divide: 1 where nothing varies."""
    return torch.where(spread > 1e-6, spread, 1.0)
