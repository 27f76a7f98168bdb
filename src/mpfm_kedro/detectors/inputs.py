"""Standardised features, as networks and heads read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context

IMAGES_PER_BATCH = 64
LEAST_SPREAD = 0.05
FARTHEST = 1e4  # fits half precision

# Some of the rows with their columns or channels last, (B, …, d).
READERS: dict[str, Callable[[FeatureRows, Any], Tensor]] = {
    "pooled": lambda rows, index: torch.from_numpy(rows.pooled[index]).float(),
    "maps": lambda rows, index: rows.map_batch(index).permute(0, 2, 3, 1).contiguous().float(),
}


class StandardisedInput:
    """x = (stored − centre) / spread, with centre and spread of each channel over the training normals.

    Args:
        kind: "pooled", (n, d), or "maps", (n, H', W', C).
        center: (d,) or (C,).
        spread: likewise.
    """

    def __init__(self, kind: str, center: Tensor, spread: Tensor) -> None:
        self.kind = kind
        self.center = center
        self.spread = spread

    @classmethod
    def fit(cls, kind: str, normals: FeatureRows) -> Self:
        """Channels that hardly vary among few normals are not inflated: no spread is less than 5 % of the mean one."""
        center = _mean(kind, normals, lambda x: x)
        spread = _mean(kind, normals, lambda x: (x - center).square()).sqrt()
        return cls(kind, center, spread.clamp_min(max(LEAST_SPREAD * float(spread.mean()), 1e-6)))

    @classmethod
    def restore(cls, kind: str, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of ``tensors``."""
        return cls(kind, tensors["center"].cpu(), tensors["spread"].cpu())

    def tensors(self) -> dict[str, Tensor]:
        """Centre and spread, to be stored."""
        return {"center": self.center, "spread": self.spread}

    def read(self, rows: FeatureRows, index: Any) -> Tensor:
        """Some of the rows, (B, …, d)."""
        stored = READERS[self.kind](rows, index)
        return ((stored - self.center) / self.spread).clamp_(-FARTHEST, FARTHEST)

    def batches(self, rows: FeatureRows) -> Iterator[Tensor]:
        """All rows in order, (B, …, d) each."""
        for part in rows.slices(IMAGES_PER_BATCH):
            yield self.read(rows, part)


class TrainingInput:
    """The standardised rows of all groups, group after group, in half precision.

    They are cached on the device, or read from the store and standardised whenever a batch needs them; the values are
    the same.

    Args:
        source: what is read.
        groups: rows of each group, n in all.
        batch_size: B, of all batches.
        device: where batches go.
        cached: whether all rows are kept there.

    Attributes:
        shape: (n, …, d).
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
        self._source, self._groups, self._device = source, groups, device
        sizes = torch.tensor([len(rows) for rows in groups])
        self._end = sizes.cumsum(0)
        self._first = self._end - sizes
        row = source.read(groups[0], slice(1)).shape[1:]
        self.shape = torch.Size([int(sizes.sum()), *row])
        self._half = torch.empty(batch_size, *row, dtype=torch.half, device=device)
        self._batch = torch.empty(batch_size, *row, dtype=torch.float, device=device)
        self._values = self._read_all().to(device) if cached else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows (B,) in half precision, (B, …, d)."""
        if self._values is None:
            return self._read(index.cpu()).to(self._device)
        return self._values[index.to(self._device)]

    def batch(self, index: Tensor) -> Tensor:
        """Rows (B,) in single precision, (B, …, d); the next batch overwrites them."""
        if self._values is None:
            self._half.copy_(self._read(index.cpu()))
        else:
            torch.index_select(self._values, 0, index.to(self._device), out=self._half)
        return self._batch.copy_(self._half)

    def _read(self, index: Tensor) -> Tensor:
        values = torch.empty(len(index), *self.shape[1:], dtype=torch.half)
        group = torch.bucketize(index, self._end, right=True)
        for number in group.unique().tolist():
            own = group == number
            values[own] = self._source.read(self._groups[number], (index[own] - self._first[number]).numpy()).half()
        return values

    def _read_all(self) -> Tensor:
        values, start = torch.empty(self.shape, dtype=torch.half), 0
        for rows in self._groups:
            for x in self._source.batches(rows):
                values[start : start + len(x)] = x
                start += len(x)
        return values


def training_inputs(
    sources: Sequence[StandardisedInput], groups: Sequence[FeatureRows], batch_size: int, context: Context
) -> list[TrainingInput]:
    """Inputs in batches of one size, cached where all of them fit in half of the memory that may be used."""
    values_per_row = sum(source.read(groups[0], slice(1)).numel() for source in sources)
    needed = sum(map(len, groups)) * values_per_row * torch.half.itemsize
    cached = needed <= context.memory // 2
    return [TrainingInput(source, groups, batch_size, context.device, cached=cached) for source in sources]


def _mean(kind: str, rows: FeatureRows, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean over all rows and positions, (d,); in double precision across batches."""
    batches = (of(READERS[kind](rows, part)) for part in rows.slices(IMAGES_PER_BATCH))
    sums = torch.stack([len(x) * x.flatten(0, -2).mean(0).double() for x in batches])
    return (sums.sum(0) / len(rows)).float()
