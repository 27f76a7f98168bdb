"""What baselines with a trained network share: balanced batches, training loop, scores of the top positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, Detector, Scores, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput, TrainingInput, training_inputs
from mpfm_kedro.errors import InputError

NORMAL, SEEN, PSEUDO = 0, 1, 2

N_NORMALS, N_ANOMALIES = 32, 16
BATCH_SIZE = N_NORMALS + N_ANOMALIES
WEIGHT_DECAY = 1e-5
DECAYS, DECAY = 5, 0.1
MAX_GRADIENT = 1.0

TOP_SHARE = 0.1


class Batch(NamedTuple):
    """Positions among all training rows and groups (``NORMAL``, ``SEEN`` or ``PSEUDO``), each (B,)."""

    row: Tensor
    group: Tensor


def balanced_batches(sizes: list[int], steps: int, generator: torch.Generator) -> Iterator[Batch]:
    """One batch per step: 16 normals, 16 pseudo-anomalies and 16 views of known anomalies; else 32 normals and 16.

    Args:
        sizes: the number of rows of each group; rows are numbered through the groups.
        steps: the number of batches.
        generator: rows of a group are drawn with replacement.
    """
    n_pseudo = N_NORMALS // 2 if sizes[PSEUDO] else 0
    group = torch.tensor([NORMAL] * (N_NORMALS - n_pseudo) + [PSEUDO] * n_pseudo + [SEEN] * N_ANOMALIES)
    size = torch.tensor(sizes)
    first = size.cumsum(0) - size
    for _ in range(steps):
        position = torch.rand(len(group), generator=generator, dtype=torch.double)
        yield Batch(first[group] + (position * size[group]).long(), group)


class NetworkDetector(Detector):
    """A network on standardised features of the frozen backbone.

    Class attributes:
        reads: what the network takes, in this order: "pooled", (B, d), and "maps", (B, H', W', C).

    Attributes:
        losses: the loss of each step of the last fit.
    """

    kind: ClassVar[str] = "baseline"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("maps",)

    losses: list[float]
    _inputs: list[StandardisedInput]
    _network: nn.Module
    _device: torch.device

    @classmethod
    @abstractmethod
    def network_like(cls, stored: Mapping[str, Tensor]) -> nn.Module:
        """A network whose tensors have the shapes of the stored ones."""

    @abstractmethod
    def anomaly_score(self, output: Any) -> Tensor:
        """One score per image from the network's output, (B,)."""

    def training_inputs(self, groups: list[FeatureRows], context: Context) -> list[TrainingInput]:
        """Standardise by the first group, the normals, and prepare batches of all groups."""
        self._device = context.device
        self._inputs = [StandardisedInput.fit(kind, groups[0]) for kind in self.reads]
        return training_inputs(self._inputs, groups, BATCH_SIZE, context)

    @torch.no_grad()
    def score_samples(self, rows: FeatureRows) -> Scores:
        """The trained network's score of each image."""
        batches = zip(*(each.batches(rows) for each in self._inputs), strict=True)
        scores = [self.anomaly_score(self._network(*(x.to(self._device) for x in batch))) for batch in batches]
        return Scores(torch.cat(scores).cpu().numpy())

    def state(self) -> Artefact:
        """Network, and centre and spread of each input."""
        tensors = {f"network.{name}": value.cpu() for name, value in self._network.state_dict().items()}
        for each in self._inputs:
            tensors |= {f"{each.kind}.{name}": value for name, value in each.tensors().items()}
        return Artefact(tensors)

    @classmethod
    def restore(cls, state: Artefact, device: torch.device) -> Self:
        """The trained network, ready to score."""
        detector, stored = cls(), state.part("network")
        with torch.random.fork_rng(devices=[]):
            network = cls.network_like(stored)
        network.load_state_dict(stored)
        detector._network = network.to(device).eval()
        detector._inputs = [StandardisedInput.restore(kind, state.part(kind)) for kind in cls.reads]
        detector._device = device
        return detector


class GradientDetector(NetworkDetector):
    """A network trained by gradient descent on normals and known anomalies.

    Adam, weight decay 1e-5, gradient norm at most 1, rate × 0.1 after every fifth of the steps. The published
    rate of 2e-4 is for tuning a backbone: on frozen features it has decayed long before the training loss is low. Each
    baseline has the one of 2e-4, 1e-3, 3e-3, 1e-2 and 3e-2 at which its training loss on ELPV ends lowest, the smaller
    of two that are equal, for all datasets alike; no test image had a part in it.

    Class attributes:
        learning_rate: the rate at the start.
        uses_pseudo: whether half of the normals of a batch are replaced by pseudo-anomalies.
    """

    budget: ClassVar[str] = "{steps} steps of 48"
    uses_pseudo: ClassVar[bool] = False
    learning_rate: ClassVar[float]

    @abstractmethod
    def network(self, inputs: list[TrainingInput], n_normals: int) -> nn.Module:
        """The untrained network for inputs (n, …, d) each, whose first rows are the training normals."""

    @abstractmethod
    def loss(self, output: Any, group: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of the network's output for rows of these groups (B,)."""

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Train the network on balanced batches."""
        check_groups(self.name, data)
        pseudo = data.pseudo if self.uses_pseudo else data.pseudo.take(np.arange(0))
        groups = [data.normals, data.anomalies, pseudo]
        inputs = self.training_inputs(groups, context)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._network = self.network(inputs, len(data.normals)).to(context.device)
        generator = torch.Generator().manual_seed(seed)
        batches = balanced_batches([len(rows) for rows in groups], self.steps, generator)
        self.losses = self._train(batches, inputs, generator)
        return self

    def _train(self, batches: Iterator[Batch], inputs: list[TrainingInput], generator: torch.Generator) -> list[float]:
        parameters = list(self._network.parameters())
        optimiser = torch.optim.Adam(parameters, self.learning_rate, weight_decay=WEIGHT_DECAY, fused=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, max(1, self.steps // DECAYS), DECAY)
        losses = []
        self._network.train()
        for row, group in batches:
            output = self._network(*(each.batch(row) for each in inputs))
            loss = self.loss(output, group.to(self._device), generator)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT)
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
        self._network.eval()
        return [float(loss) for loss in losses]


def check_groups(name: str, data: TrainingData) -> None:
    """Refuse to learn without normals or without known anomalies."""
    if not len(data.normals) or not len(data.anomalies):
        raise InputError(
            f"{name} learns from normals and known anomalies, and needs at least one of each; "
            f"got {len(data.normals)} normals and {len(data.anomalies)} known anomalies"
        )


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
