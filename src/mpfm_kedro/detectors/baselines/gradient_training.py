"""What baselines with a trained network share: balanced batches, training loop, scores of the top positions."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from mpfm_kedro.detectors.base import Baseline, Context, TrainingData
from mpfm_kedro.detectors.inputs import FARTHEST, StandardisedInput, TrainingInput, training_inputs
from mpfm_kedro.detectors.mpfm.patches import top_number

NORMAL, SEEN, PSEUDO = 0, 1, 2

N_NORMALS, N_ANOMALIES = 32, 16
BATCH_SIZE = N_NORMALS + N_ANOMALIES
WEIGHT_DECAY = 1e-5
DECAYS, DECAY = 5, 0.1
MAX_GRADIENT = 1.0

TOP_SHARE = 0.1

Inputs = Sequence[TrainingInput] | Sequence[Tensor]


def batch_groups(with_pseudo: bool) -> Tensor:
    """The groups of a batch (48,): 16 normals, 16 pseudo-anomalies and 16 known anomalies; else 32 normals and 16."""
    n_pseudo = N_NORMALS // 2 if with_pseudo else 0
    return torch.tensor([NORMAL] * (N_NORMALS - n_pseudo) + [PSEUDO] * n_pseudo + [SEEN] * N_ANOMALIES)


def balanced_batches(sizes: list[int], steps: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions among all training rows, numbered through groups of these sizes, and their groups: (48,) for each step.

    Rows of a group are drawn with replacement.
    """
    group, size = batch_groups(sizes[PSEUDO] > 0), torch.tensor(sizes)
    first = size.cumsum(0) - size
    for _ in range(steps):
        position = torch.rand(len(group), generator=generator, dtype=torch.double)
        yield first[group] + (position * size[group]).long(), group


class GradientDetector(Baseline):
    """A network trained by gradient descent on normals and known anomalies.

    Adam, weight decay 1e-5, gradient norm at most 1, rate × 0.1 after every fifth of the steps. The published
    rate of 2e-4 is for tuning a backbone: on frozen features it has decayed long before the training loss is low. Each
    baseline has the one of 2e-4, 1e-3, 3e-3, 1e-2 and 3e-2 at which its training loss on ELPV ends lowest, the smaller
    of two that are equal, for all datasets alike; no test image had a part in it.
    """

    kind = "baseline"
    supervised = True
    random = True
    budget = "{steps} steps of 48"
    uses_pseudo: ClassVar[bool] = False  # whether they replace half of the normals of a batch
    learning_rate: ClassVar[float]  # at the start

    inputs: nn.ModuleList
    network: nn.Module
    losses: list[float]  # of each step of the last fit

    @abstractmethod
    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """The untrained network for inputs (n, …, d) each, whose first rows are the training normals."""

    @abstractmethod
    def loss(self, output: Any, group: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of the network's output for rows of these groups (B,)."""

    def anomaly_score(self, output: Any) -> Tensor:
        """One score per image from the network's output, (B,); the only column of (B, 1) unless a baseline says how."""
        return output[:, 0]

    def forward(self, *stored: Tensor) -> Tensor:
        """Stored features → (B,)."""
        standardised = [one(x).clamp_(-FARTHEST, FARTHEST) for one, x in zip(self.inputs, stored, strict=True)]
        return self.anomaly_score(self.network(*standardised))

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Train the network."""
        pseudo = data.pseudo if self.uses_pseudo else data.pseudo.take(np.arange(0))
        sources = [StandardisedInput.fit(kind, data.normals) for kind in self.reads]
        inputs = training_inputs(sources, [data.normals, data.anomalies, pseudo], BATCH_SIZE, context)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.inputs, self.network = nn.ModuleList(sources), self.build(inputs, len(data.normals))
            self.to(context.device)
            self._descend(self.batch_losses(data, inputs, seed))
        return self

    def batch_losses(self, data: TrainingData, inputs: Sequence[TrainingInput], seed: int) -> Iterator[Tensor]:
        """The loss of one batch after the other, with the network as it is by then."""
        generator = torch.Generator().manual_seed(seed)
        sizes = [len(data.normals), len(data.anomalies), len(data.pseudo) * self.uses_pseudo]
        for row, group in balanced_batches(sizes, self.steps, generator):
            output = self.network(*(stored.batch(row) for stored in inputs))
            yield self.loss(output, group.to(inputs[0].device), generator)

    def schedule(self, optimiser: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        """How the rate falls."""
        return lr_scheduler.StepLR(optimiser, max(1, self.steps // DECAYS), DECAY)

    def _descend(self, batch_losses: Iterator[Tensor]) -> None:
        parameters, losses = list(self.network.parameters()), []
        optimiser = torch.optim.Adam(parameters, self.learning_rate, weight_decay=WEIGHT_DECAY, fused=True)
        schedule = self.schedule(optimiser)
        self.train()
        for loss in batch_losses:
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT)
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
        self.eval()
        self.losses = [float(loss) for loss in losses]


class TopPositions(nn.Module):
    """K scores of an image from the positions p of its map: S_k = mean over the top 10 % of |w_k · x_p + b_k|.

    Only the top positions have a gradient, so they are found without one and scored again. Unless ``absolute``, the
    sign of a position's score counts.
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
            top = scores.topk(top_number(TOP_SHARE, patches.shape[1]), dim=1).indices
        image = torch.arange(len(maps), device=maps.device)[:, None]
        parts = [
            self._signed(patches[image, top[:, :, k]] @ weight + bias).mean(1)
            for k, (weight, bias) in enumerate(zip(self.linear.weight, self.linear.bias, strict=True))
        ]
        return torch.stack(parts, dim=1)

    def _signed(self, scores: Tensor) -> Tensor:
        return scores.abs() if self.absolute else scores
