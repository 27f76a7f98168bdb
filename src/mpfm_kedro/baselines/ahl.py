"""AHL: a detector that adapts well to each of several made anomaly distributions, weighted by their importance."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import permutations
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.func import functional_call

from mpfm_kedro.baselines.devnet import deviation_loss
from mpfm_kedro.baselines.gradient_training import (
    ANOMALY_SIDE,
    MAX_GRADIENT,
    NORMAL_SIDE,
    WEIGHT_DECAY,
    StandardisedInput,
    TopPositions,
    check_sides,
)
from mpfm_kedro.baselines.method import Method, TrainingData
from mpfm_kedro.model.feature_rows import FeatureRows

CLUSTERS = 3
STEPS_PER_EPOCH = 20
LEARNING_RATE = 1e-2
INNER_STEPS, INNER_RATE = 3, 0.01
REMEMBERED = 5
HIDDEN = 8


class Sides(NamedTuple):
    """Positions among all training rows, each (n,)."""

    normals: Tensor
    pseudo: Tensor
    anomalies: Tensor

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch of 48 with replacement: positions (48,) and which shall deviate (48,).

        16 normals, 16 pseudo-anomalies of them (32 normals where there are none) and 16 known anomalies.
        """
        made = NORMAL_SIDE // 2 if len(self.pseudo) else 0
        sizes = (NORMAL_SIDE - made, made, ANOMALY_SIDE)
        drawn = [
            side[torch.randint(len(side), (size,), generator=generator)]
            for side, size in zip(self, sizes, strict=True)
            if size
        ]
        return torch.cat(drawn), torch.arange(sum(sizes)) >= sizes[0]


class Subset(NamedTuple):
    """One anomaly distribution: a detector adapts to the support and is judged on the query."""

    support: Sides
    query: Sides


def heterogeneous_subsets(data: TrainingData, cluster: np.ndarray, rng: np.random.Generator) -> list[Subset]:
    """An ordered pair of clusters (n,) of the normals each, one in support and one in query, and one of all in both.

    Half of the known anomalies, drawn anew for each subset, are in support, the others in query; a single one is in
    both. Pseudo-anomalies go with the normal that they are made of. Rows are counted on from normals to
    pseudo-anomalies to known anomalies.
    """
    sides = [(cluster == a, cluster == b) for a, b in permutations(range(cluster.max() + 1), 2)]
    everything = np.ones(len(cluster), dtype=bool)
    n_known, n_before = len(data.known), len(data.normals) + len(data.pseudo)
    subsets = []
    for support, query in [*sides, (everything, everything)]:
        order = rng.permutation(n_known)
        halves = (order[: (n_known + 1) // 2], order[n_known // 2 :] if n_known == 1 else order[(n_known + 1) // 2 :])
        parts = []
        for chosen, known in zip((support, query), halves, strict=True):
            made = len(data.normals) + np.flatnonzero(chosen[data.pseudo.source])
            seen = n_before + np.flatnonzero(np.isin(data.anomalies.source, known))
            parts.append(Sides(*(torch.from_numpy(rows) for rows in (np.flatnonzero(chosen), made, seen))))
        subsets.append(Subset(*parts))
    return subsets


class Importance(nn.Module):
    """w_i = softmax(−r̂_i): r̂_i is the error of subset i's detector on other subsets that its history lets expect.

    A small recurrent net reads what the detector lost in the last five epochs on its own query and on the others'; it
    learns from what came next. Until there is a history all subsets count alike.
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
        own = losses.diagonal()
        others = (losses.sum(1) - own) / max(len(losses) - 1, 1)
        if len(self.history) == REMEMBERED:
            error = (self(torch.stack(list(self.history), dim=1)) - others).square().mean()
            self.optimiser.zero_grad()
            error.backward()
            self.optimiser.step()
        self.history.append(torch.stack([own, others], dim=1))

    @torch.no_grad()
    def weights(self, number: int) -> Tensor:
        """w (subsets,)."""
        if len(self.history) < REMEMBERED:
            return torch.full((number,), 1 / number)
        return (-self(torch.stack(list(self.history), dim=1))).softmax(0)


class AHL(Method):
    """Unified detector θ ← θ − η Σ_i w_i ∇L(query_i; φ_i), φ_i = θ after three steps on support_i.

    The base detector is DevNet's: top positions of a 1×1 convolution, deviation loss. Its loss is piecewise linear in
    θ, so ∇ by φ_i is also that by θ. In each step one subset is drawn with probability w_i in place of the sum over
    all. No epoch is chosen: the last one counts. Only CutMix makes pseudo-anomalies, and the backbone is frozen. Of
    the rates 1e-3, 3e-3, 1e-2 and 3e-2 the one is taken at which the training loss ends lowest.

    Attributes:
        losses: L(query_i; φ_i) of each step of the last fit.
        importance: w of each epoch, (epochs, subsets).
    """

    name: ClassVar[str] = "AHL"
    kind: ClassVar[str] = "rival"
    differs: ClassVar[str] = "over DevNet alone, one subset a step, pseudo-anomalies by CutMix alone"
    supervised: ClassVar[bool] = True
    random: ClassVar[bool] = True
    budget: ClassVar[str] = "{steps} steps of 48, each after 3 inner steps of 48"
    seconds: ClassVar[float] = 33

    losses: list[float]
    importance: Tensor

    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Cluster the normals, make the subsets, and learn over them."""
        check_sides(self.name, data)
        self._device = device
        self._input = StandardisedInput("maps", data.normals)
        self._held = self._input.held([data.normals, data.pseudo, data.anomalies], device)
        subsets = heterogeneous_subsets(data, _clusters(data.normals, seed), np.random.default_rng(seed))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            channels = data.normals.maps.shape[1]
            self._detector = TopPositions(channels).to(device)
            self._all_adapted = TopPositions(channels, len(subsets)).to(device)
            importance = Importance()
        self._train(subsets, importance, torch.Generator().manual_seed(seed))
        del self._held, self._all_adapted

    def _train(self, subsets: Sequence[Subset], importance: Importance, generator: torch.Generator) -> None:
        epochs = math.ceil(self.steps / STEPS_PER_EPOCH)
        optimiser = torch.optim.Adam(self._detector.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * STEPS_PER_EPOCH)
        losses, weights = [], []
        for _ in range(epochs):
            weights.append(importance.weights(len(subsets)))
            for number in torch.multinomial(weights[-1], STEPS_PER_EPOCH, replacement=True, generator=generator):
                subset = subsets[number]
                adapted = self._adapt(subset.support, generator)
                loss = self._loss(adapted, *self._batch(subset.query, generator), generator)
                gradients = torch.autograd.grad(loss, list(adapted.values()))
                for parameter, gradient in zip(self._detector.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                nn.utils.clip_grad_norm_(self._detector.parameters(), MAX_GRADIENT)
                optimiser.step()
                schedule.step()
                losses.append(loss.detach())
            importance.observe(self._judge(subsets, generator))
        self.losses = [float(loss) for loss in losses]
        self.importance = torch.stack(weights) if weights else torch.empty(0, len(subsets))

    def _batch(self, sides: Sides, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        index, abnormal = sides.draw(generator)
        return self._held.batch(index.to(self._device)), abnormal.to(self._device)

    def _adapt(self, support: Sides, generator: torch.Generator) -> dict[str, Tensor]:
        """φ: the parameters after a few steps on one batch of the support."""
        parameters = {name: value.detach().requires_grad_() for name, value in self._detector.named_parameters()}
        maps, abnormal = self._batch(support, generator)
        for _ in range(INNER_STEPS):
            loss = self._loss(parameters, maps, abnormal, generator)
            gradients = torch.autograd.grad(loss, list(parameters.values()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            rate = INNER_RATE * (MAX_GRADIENT / norm).clamp_max(1)
            parameters = {
                name: (value - rate * gradient).detach().requires_grad_()
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
            }
        return parameters

    def _loss(
        self, parameters: dict[str, Tensor], maps: Tensor, abnormal: Tensor, generator: torch.Generator
    ) -> Tensor:
        return deviation_loss(functional_call(self._detector, parameters, (maps,))[:, 0], abnormal, generator)

    def _judge(self, subsets: Sequence[Subset], generator: torch.Generator) -> Tensor:
        """The loss of each subset's detector on a batch of each subset's query, (subsets, subsets)."""
        adapted = [self._adapt(subset.support, generator) for subset in subsets]
        parameters = {name: torch.cat([each[name] for each in adapted]).detach() for name in adapted[0]}
        columns = []
        for subset in subsets:
            maps, abnormal = self._batch(subset.query, generator)
            with torch.no_grad():
                scores = functional_call(self._all_adapted, parameters, (maps,))
            columns.append(torch.stack([deviation_loss(each, abnormal, generator) for each in scores.unbind(1)]))
        return torch.stack(columns, dim=1).cpu()

    @torch.no_grad()
    def score(self, rows: FeatureRows) -> np.ndarray:
        """The unified detector's score of each image, (n,)."""
        scores = [self._detector(maps.to(self._device))[:, 0] for maps in self._input.batches(rows)]
        return torch.cat(scores).cpu().numpy()


def _clusters(normals: FeatureRows, seed: int) -> np.ndarray:
    """The cluster of each normal by K-means on standardised pooled statistics, (n,)."""
    z = torch.cat(list(StandardisedInput("pooled", normals).batches(normals))).numpy()
    distinct = len(np.unique(z, axis=0))
    return KMeans(min(CLUSTERS, distinct), n_init=4, random_state=seed).fit_predict(z)
