"""AHL: a detector that adapts well to each of several anomaly distributions, weighted by their importance."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import lr_scheduler

from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.detectors.baselines.classifiers import DevNet
from mpfm_kedro.detectors.baselines.gradient_training import (
    MAX_GRADIENT,
    NORMAL,
    PSEUDO,
    SEEN,
    TopPositions,
    batch_groups,
)
from mpfm_kedro.detectors.inputs import StandardisedInput, TrainingInput

CLUSTERS = 3
STEPS_PER_EPOCH = 20
INNER_STEPS, INNER_RATE = 3, 0.01
REMEMBERED = 5
HIDDEN = 8

Parameters = dict[str, Tensor]


class Groups(NamedTuple):
    """Positions among all training rows, each (n,)."""

    normals: Tensor
    pseudo: Tensor
    anomalies: Tensor

    def draw(self, maps: TrainingInput, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Maps (48, H', W', C) with replacement and groups (48,), 32 normals where there are no pseudo-anomalies."""
        group, rows = batch_groups(len(self.pseudo) > 0), []
        for members, kind in zip(self, (NORMAL, PSEUDO, SEEN), strict=True):
            if size := int((group == kind).sum()):
                rows.append(members[torch.randint(len(members), (size,), generator=generator)])
        return maps.batch(torch.cat(rows)), group.to(maps.device)


Subset = tuple[Groups, Groups]  # one anomaly distribution: a detector adapts to the support, then sees the query


def heterogeneous_subsets(data: TrainingData, cluster: np.ndarray, rng: np.random.Generator) -> list[Subset]:
    """One subset per ordered pair of clusters (n,) of the normals, in support and in query, and one of all normals.

    Half of the known anomalies, drawn anew for each subset, are in support, the others in query; a single one is in
    both. Pseudo-anomalies go with their normal. Rows are numbered from normals through known anomalies to
    pseudo-anomalies.
    """
    pairs = [(cluster == a, cluster == b) for a, b in permutations(range(cluster.max() + 1), 2)]
    everything = np.ones(len(cluster), dtype=bool)
    n_normals, n_known = len(data.normals), data.n_known
    subsets = []
    for chosen in [*pairs, (everything, everything)]:
        order = rng.permutation(n_known)
        halves = (order, order) if n_known == 1 else np.array_split(order, 2)
        sides = []
        for normals, known in zip(chosen, halves, strict=True):
            seen = n_normals + np.flatnonzero(np.isin(data.anomalies.source, known))
            pseudo = n_normals + len(data.anomalies) + np.flatnonzero(normals[data.pseudo.source])
            sides.append(Groups(*map(torch.from_numpy, (np.flatnonzero(normals), pseudo, seen))))
        subsets.append((sides[0], sides[1]))
    return subsets


class Importance(nn.Module):
    """w_i = softmax(−r̂_i): r̂_i is the predicted error of subset i's detector on the other subsets.

    A small recurrent net reads the losses of the last five epochs on the detector's own query and on the others'; it
    learns from the next epoch's. Until five epochs are known all subsets have equal weight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(2, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, 1)
        self.history: deque[Tensor] = deque(maxlen=REMEMBERED)
        self.optimiser = torch.optim.Adam(self.parameters(), 0.01)

    def forward(self, history: Tensor) -> Tensor:
        """(subsets, epochs, 2) → r̂ (subsets,), as a change of the last error."""
        return history[:, -1, 1] + self.out(self.recurrent(history)[1][0])[:, 0]

    def observe(self, losses: Tensor) -> None:
        """Learn from the loss of each subset's detector on each subset's query, (subsets, subsets), and keep it."""
        on_own = losses.diagonal()
        on_others = (losses.sum(1) - on_own) / max(len(losses) - 1, 1)
        if len(self.history) == REMEMBERED:
            error = (self(torch.stack(list(self.history), dim=1)) - on_others).square().mean()
            self.optimiser.zero_grad()
            error.backward()
            self.optimiser.step()
        self.history.append(torch.stack([on_own, on_others], dim=1))

    @torch.no_grad()
    def weights(self, number: int) -> Tensor:
        """w (subsets,)."""
        if len(self.history) < REMEMBERED:
            return torch.full((number,), 1 / number)
        return (-self(torch.stack(list(self.history), dim=1))).softmax(0)


class AHL(DevNet):
    """Unified detector θ ← θ − η Σ_i w_i ∇L(query_i; φ_i), φ_i = θ after three steps on support_i.

    The base detector is DevNet's: top positions of a 1×1 convolution, deviation loss. Its loss is piecewise linear in
    θ, so ∇ by φ_i is also that by θ. In each step one subset is drawn with probability w_i in place of the sum over
    all. No epoch is selected: the last one is used. Only CutMix makes pseudo-anomalies, and the backbone is frozen.
    The rate is the one of 1e-3, 3e-3, 1e-2 and 3e-2 at which the training loss ends lowest.
    """

    name = "AHL"
    differs = "over DevNet alone, one subset per step, pseudo-anomalies by CutMix alone"
    budget = "{steps} steps of 48, each after 3 inner steps of 48"
    uses_pseudo = True
    learning_rate = 1e-2

    def schedule(self, optimiser: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        """A cosine over all steps."""
        return lr_scheduler.CosineAnnealingLR(optimiser, self._epochs() * STEPS_PER_EPOCH)

    def batch_losses(self, data: TrainingData, inputs: Sequence[TrainingInput], seed: int) -> Iterator[Tensor]:
        """L(query_i; φ_i) of one subset i after the other."""
        maps, generator = inputs[0], torch.Generator().manual_seed(seed)
        z = StandardisedInput.fit("pooled", data.normals).read(data.normals, slice(None)).numpy()
        n_clusters = min(CLUSTERS, len(np.unique(z, axis=0)))
        cluster = KMeans(n_clusters, n_init=4, random_state=seed).fit_predict(z)
        subsets = heterogeneous_subsets(data, cluster, np.random.default_rng(seed))
        all_adapted = TopPositions(maps.shape[-1], len(subsets)).to(maps.device)
        importance = Importance()
        for _ in range(self._epochs()):
            weights = importance.weights(len(subsets))
            drawn = torch.multinomial(weights, STEPS_PER_EPOCH, replacement=True, generator=generator)
            for number in drawn.tolist():
                support, query = subsets[number]
                adapted = self._adapt(support, maps, generator)
                x, group = query.draw(maps, generator)
                yield self._loss_of(adapted, x, group, generator)
            importance.observe(self._judge(all_adapted, subsets, maps, generator))

    def _epochs(self) -> int:
        return math.ceil(self.steps / STEPS_PER_EPOCH)

    def _adapt(self, support: Groups, maps: TrainingInput, generator: torch.Generator) -> Parameters:
        """φ: the parameters after a few steps on one batch of the support; its derivative by θ is taken as 1."""
        start = dict(self.network.named_parameters())
        adapted = {name: value.detach().requires_grad_() for name, value in start.items()}
        x, group = support.draw(maps, generator)
        for _ in range(INNER_STEPS):
            gradients = torch.autograd.grad(self._loss_of(adapted, x, group, generator), list(adapted.values()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            rate = INNER_RATE * (MAX_GRADIENT / norm).clamp_max(1)
            adapted = {
                name: (value - rate * gradient).detach().requires_grad_()
                for (name, value), gradient in zip(adapted.items(), gradients, strict=True)
            }
        return {name: adapted[name].detach() + (value - value.detach()) for name, value in start.items()}

    def _loss_of(self, parameters: Parameters, x: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        return self.loss(functional_call(self.network, parameters, (x,)), group, generator)

    @torch.no_grad()
    def _judge(
        self, all_adapted: TopPositions, subsets: Sequence[Subset], maps: TrainingInput, generator: torch.Generator
    ) -> Tensor:
        """The loss of each subset's detector on a batch of each subset's query, (subsets, subsets)."""
        with torch.enable_grad():
            adapted = [self._adapt(support, maps, generator) for support, _ in subsets]
        parameters = {name: torch.cat([of_subset[name] for of_subset in adapted]) for name in adapted[0]}
        columns = []
        for _, query in subsets:
            x, group = query.draw(maps, generator)
            scores = functional_call(all_adapted, parameters, (x,))
            columns.append(torch.stack([self.loss(column, group, generator) for column in scores.split(1, dim=1)]))
        return torch.stack(columns, dim=1).cpu()
