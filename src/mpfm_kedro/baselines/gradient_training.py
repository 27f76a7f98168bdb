"""What rivals trained by gradient descent share: standardised features, balanced batches, loop, top positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.baselines.method import Method, TrainingData
from mpfm_kedro.model.feature_rows import FeatureRows

NORMAL, SEEN, PSEUDO = 0, 1, 2

NORMAL_SIDE, ANOMALY_SIDE = 32, 16
WEIGHT_DECAY = 1e-5
DECAYS, DECAY = 5, 0.1
MAX_GRADIENT = 1.0

TOP_SHARE = 0.1
ROWS_AT_ONCE = 64
LEAST_SPREAD = 0.05
FARTHEST = 1e4  # fits half precision

# Some of the rows with their columns or channels last, (B, …, d).
READERS: dict[str, Callable[[FeatureRows, slice], Tensor]] = {
    "pooled": lambda rows, part: torch.from_numpy(rows.pooled[part]).float(),
    "maps": lambda rows, part: rows.map_batch(part).permute(0, 2, 3, 1).contiguous().float(),
}


class StandardisedInput:
    """x = (stored − centre) / spread, with centre and spread of each channel over the training normals.

    What hardly varies among few normals is not blown up: no spread is less than a share of the mean spread.

    Args:
        kind: "pooled", (n, d), or "maps", (n, H', W', C).
        normals: the training normals.
    """

    def __init__(self, kind: str, normals: FeatureRows) -> None:
        self._kind = kind
        self.center = self._mean(normals, lambda x: x)
        spread = self._mean(normals, lambda x: (x - self.center).square()).sqrt()
        self.spread = spread.clamp_min(max(LEAST_SPREAD * float(spread.mean()), 1e-6))

    def _read(self, rows: FeatureRows, part: slice) -> Tensor:
        return READERS[self._kind](rows, part)

    def _mean(self, rows: FeatureRows, of: Callable[[Tensor], Tensor]) -> Tensor:
        parts = (of(self._read(rows, part)) for part in _parts(rows))
        sums = torch.stack([len(x) * x.flatten(0, -2).mean(0).double() for x in parts])
        return (sums.sum(0) / len(rows)).float()

    def batches(self, rows: FeatureRows) -> Iterator[Tensor]:
        """All rows in order, some at once, (B, …, d)."""
        for part in _parts(rows):
            yield ((self._read(rows, part) - self.center) / self.spread).clamp_(-FARTHEST, FARTHEST)

    def held(self, sides: list[FeatureRows], device: torch.device) -> HeldInput:
        """All rows of all sides, one side after the other, in memory."""
        shape = self._read(sides[0], slice(1)).shape[1:]
        values = torch.empty(sum(map(len, sides)), *shape, dtype=torch.half)
        start = 0
        for side in sides:
            for x in self.batches(side):
                values[start : start + len(x)] = x
                start += len(x)
        return HeldInput(values.to(device))


class HeldInput:
    """Rows in half precision, (n, …, d); batches of one size are written to the same memory."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        shape = (NORMAL_SIDE + ANOMALY_SIDE, *values.shape[1:])
        self._half = torch.empty(shape, dtype=values.dtype, device=values.device)
        self._batch = torch.empty(shape, dtype=torch.float, device=values.device)

    def batch(self, rows: Tensor) -> Tensor:
        """Some rows in single precision, (B, …, d); the next batch overwrites them."""
        torch.index_select(self.values, 0, rows, out=self._half)
        return self._batch.copy_(self._half)


class Batch(NamedTuple):
    """Positions among all training rows and sides (``NORMAL``, ``SEEN`` or ``PSEUDO``), each (B,)."""

    row: Tensor
    side: Tensor


def balanced_batches(sizes: list[int], steps: int, generator: torch.Generator) -> Iterator[Batch]:
    """A batch a step: 32 normals, or 16 and 16 pseudo-anomalies if there are any, and 16 views of known anomalies.

    Args:
        sizes: how many rows there are of each side; rows are numbered through the sides.
        steps: how many batches.
        generator: rows of a side are drawn with replacement.
    """
    made = NORMAL_SIDE // 2 if sizes[PSEUDO] else 0
    side = torch.tensor([NORMAL] * (NORMAL_SIDE - made) + [PSEUDO] * made + [SEEN] * ANOMALY_SIDE)
    size = torch.tensor(sizes)
    first = size.cumsum(0) - size
    for _ in range(steps):
        place = torch.rand(len(side), generator=generator, dtype=torch.double)
        yield Batch(first[side] + (place * size[side]).long(), side)


def check_sides(name: str, data: TrainingData) -> None:
    """Refuse to learn from nothing."""
    if not len(data.normals) or not len(data.anomalies):
        raise ValueError(
            f"{name} learns from normals and known anomalies, and needs at least one of each; "
            f"got {len(data.normals)} normals and {len(data.anomalies)} known anomalies"
        )


class GradientMethod(Method):
    """A network on standardised features of the frozen backbone, trained on normals and known anomalies.

    Adam, weight decay 1e-5, gradient norm at most 1, rate × 0.1 after every fifth of the steps. The published
    rate of 2e-4 is for tuning a backbone: on frozen features it has decayed long before the training loss is low. Each
    rival has the one of 2e-4, 1e-3, 3e-3, 1e-2 and 3e-2 at which its training loss on ELPV ends lowest, the smaller of
    two that are equal, for all datasets alike; no test image had a part in it.

    Class attributes:
        learning_rate: the rate at the start.
        reads: what the network takes, in this order: "pooled", (B, d), and "maps", (B, H', W', C).
        uses_pseudo: whether half of the normal side of a batch is replaced by pseudo-anomalies.

    Attributes:
        losses: the loss of each step of the last fit.
    """

    kind: ClassVar[str] = "rival"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "{steps} steps of 48"
    reads: ClassVar[tuple[str, ...]] = ("maps",)
    uses_pseudo: ClassVar[bool] = False
    learning_rate: ClassVar[float]

    losses: list[float]

    @abstractmethod
    def network(self, normals: list[Tensor]) -> nn.Module:
        """The untrained network, made for the training normals, (n, …, d) of each input."""

    @abstractmethod
    def loss(self, output: Any, side: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of the network's output for rows of these sides (B,)."""

    @abstractmethod
    def anomaly_score(self, output: Any) -> Tensor:
        """The network's output as one number an image, (B,)."""

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Train the network on balanced batches."""
        pseudo = data.pseudo if self.uses_pseudo else data.pseudo.take(np.arange(0))
        sides = [data.normals, data.anomalies, pseudo]
        check_sides(self.name, data)
        self._inputs = [StandardisedInput(kind, data.normals) for kind in self.reads]
        held = [each.held(sides, device) for each in self._inputs]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._network = self.network([each.values[: len(data.normals)] for each in held]).to(device)
        generator = torch.Generator().manual_seed(seed)
        self._device = device
        batches = balanced_batches([len(rows) for rows in sides], self.steps, generator)
        self.losses = self._train(batches, held, generator)

    def _train(self, batches: Iterator[Batch], held: list[HeldInput], generator: torch.Generator) -> list[float]:
        parameters = list(self._network.parameters())
        optimiser = torch.optim.Adam(parameters, self.learning_rate, weight_decay=WEIGHT_DECAY, fused=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, max(1, self.steps // DECAYS), DECAY)
        losses = []
        self._network.train()
        for row, side in batches:
            output = self._network(*(each.batch(row.to(self._device)) for each in held))
            loss = self.loss(output, side.to(self._device), generator)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT)
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
        self._network.eval()
        return [float(loss) for loss in losses]

    @torch.no_grad()
    def score(self, rows: FeatureRows) -> np.ndarray:
        """The trained network's score of each image, (n,)."""
        batches = zip(*(each.batches(rows) for each in self._inputs), strict=True)
        scores = [self.anomaly_score(self._network(*(x.to(self._device) for x in batch))) for batch in batches]
        return torch.cat(scores).cpu().numpy()


class TopPositions(nn.Module):
    """K scores of an image from the positions p of its map: S_k = mean over the top 10 % of |w_k · x_p + b_k|.

    Only the top positions have a gradient, so they are found without one and scored again.

    Args:
        channels: C.
        scores: K.
        absolute: without it the sign of a position's score counts.
    """

    def __init__(self, channels: int, scores: int = 1, *, absolute: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, scores)
        self.absolute = absolute

    def forward(self, maps: Tensor) -> Tensor:
        """(B, H', W', C) → (B, K)."""
        patches = maps.flatten(1, 2)
        with torch.no_grad():
            scores = self._signed(self.linear(patches))
            top = scores.topk(max(1, int(TOP_SHARE * patches.shape[1])), dim=1).indices
        image = torch.arange(len(maps), device=maps.device)[:, None]
        parts = [
            self._signed(patches[image, top[:, :, k]] @ weight + bias).mean(1)
            for k, (weight, bias) in enumerate(zip(self.linear.weight, self.linear.bias, strict=True))
        ]
        return torch.stack(parts, dim=1)

    def _signed(self, scores: Tensor) -> Tensor:
        return scores.abs() if self.absolute else scores


def _parts(rows: FeatureRows) -> list[slice]:
    return [slice(start, min(start + ROWS_AT_ONCE, len(rows))) for start in range(0, len(rows), ROWS_AT_ONCE)]
