"""AHL: a detector that adapts well to each of several anomaly distributions, weighted by their importance."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.func import functional_call

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.baselines.devnet import deviation_loss
from mpfm_kedro.detectors.baselines.gradient_training import (
    MAX_GRADIENT,
    N_ANOMALIES,
    N_NORMALS,
    WEIGHT_DECAY,
    NetworkDetector,
    TopPositions,
    check_groups,
)
from mpfm_kedro.detectors.inputs import StandardisedInput, TrainingInput

CLUSTERS = 3
STEPS_PER_EPOCH = 20
LEARNING_RATE = 1e-2
INNER_STEPS, INNER_RATE = 3, 0.01
REMEMBERED = 5
HIDDEN = 8


class Groups(NamedTuple):
    """Positions among all training rows, each (n,)."""

    normals: Tensor
    pseudo: Tensor
    anomalies: Tensor

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch of 48 with replacement: positions (48,) and which shall deviate (48,).

        16 normals, 16 pseudo-anomalies of them (32 normals where there are none) and 16 known anomalies.
        """
        n_pseudo = N_NORMALS // 2 if len(self.pseudo) else 0
        sizes = (N_NORMALS - n_pseudo, n_pseudo, N_ANOMALIES)
        drawn = [
            group[torch.randint(len(group), (size,), generator=generator)]
            for group, size in zip(self, sizes, strict=True)
            if size
        ]
        return torch.cat(drawn), torch.arange(sum(sizes)) >= sizes[0]


class Subset(NamedTuple):
    """One anomaly distribution: a detector adapts to the support and is judged on the query."""

    support: Groups
    query: Groups


def heterogeneous_subsets(data: TrainingData, cluster: np.ndarray, rng: np.random.Generator) -> list[Subset]:
    """One subset per ordered pair of clusters (n,) of the normals, in support and in query, and one of all normals.

    Half of the known anomalies, drawn anew for each subset, are in support, the others in query; a single one is in
    both. Pseudo-anomalies go with their normal. Rows are numbered from normals through pseudo-anomalies to known
    anomalies.
    """
    pairs = [(cluster == a, cluster == b) for a, b in permutations(range(cluster.max() + 1), 2)]
    everything = np.ones(len(cluster), dtype=bool)
    n_known, n_before = data.n_known, len(data.normals) + len(data.pseudo)
    subsets = []
    for support, query in [*pairs, (everything, everything)]:
        order = rng.permutation(n_known)
        halves = (order[: (n_known + 1) // 2], order[n_known // 2 :] if n_known == 1 else order[(n_known + 1) // 2 :])
        parts = []
        for chosen, known in zip((support, query), halves, strict=True):
            pseudo = len(data.normals) + np.flatnonzero(chosen[data.pseudo.source])
            seen = n_before + np.flatnonzero(np.isin(data.anomalies.source, known))
            parts.append(Groups(*(torch.from_numpy(rows) for rows in (np.flatnonzero(chosen), pseudo, seen))))
        subsets.append(Subset(*parts))
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


class Adaptation:
    """What is learned of θ: adapting it to a support, and judging what was adapted on queries.

    Args:
        network: θ.
        inputs: maps of all training rows.
        subsets: the anomaly distributions.
        generator: of all draws.
    """

    def __init__(
        self, network: TopPositions, inputs: TrainingInput, subsets: Sequence[Subset], generator: torch.Generator
    ) -> None:
        self.network = network
        self.inputs = inputs
        self.subsets = subsets
        self.generator = generator
        channels, device = network.linear.in_features, network.linear.weight.device
        self._all_adapted = TopPositions(channels, len(subsets)).to(device)

    def gradients(self, subset: Subset) -> tuple[Tensor, tuple[Tensor, ...]]:
        """L(query; φ) and its gradient by φ."""
        adapted = self._adapt(subset.support)
        loss = self._loss(adapted, *self._batch(subset.query))
        return loss.detach(), torch.autograd.grad(loss, list(adapted.values()))

    def judge(self) -> Tensor:
        """The loss of each subset's detector on a batch of each subset's query, (subsets, subsets)."""
        adapted = [self._adapt(subset.support) for subset in self.subsets]
        parameters = {name: torch.cat([each[name] for each in adapted]).detach() for name in adapted[0]}
        columns = []
        for subset in self.subsets:
            maps, abnormal = self._batch(subset.query)
            with torch.no_grad():
                scores = functional_call(self._all_adapted, parameters, (maps,))
            columns.append(torch.stack([deviation_loss(each, abnormal, self.generator) for each in scores.unbind(1)]))
        return torch.stack(columns, dim=1).cpu()

    def _batch(self, groups: Groups) -> tuple[Tensor, Tensor]:
        index, abnormal = groups.draw(self.generator)
        maps = self.inputs.batch(index)
        return maps, abnormal.to(maps.device)

    def _adapt(self, support: Groups) -> dict[str, Tensor]:
        """φ: the parameters after a few steps on one batch of the support."""
        parameters = {name: value.detach().requires_grad_() for name, value in self.network.named_parameters()}
        maps, abnormal = self._batch(support)
        for _ in range(INNER_STEPS):
            loss = self._loss(parameters, maps, abnormal)
            gradients = torch.autograd.grad(loss, list(parameters.values()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            rate = INNER_RATE * (MAX_GRADIENT / norm).clamp_max(1)
            parameters = {
                name: (value - rate * gradient).detach().requires_grad_()
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
            }
        return parameters

    def _loss(self, parameters: dict[str, Tensor], maps: Tensor, abnormal: Tensor) -> Tensor:
        return deviation_loss(functional_call(self.network, parameters, (maps,))[:, 0], abnormal, self.generator)


class AHL(NetworkDetector):
    """Unified detector θ ← θ − η Σ_i w_i ∇L(query_i; φ_i), φ_i = θ after three steps on support_i.

    The base detector is DevNet's: top positions of a 1×1 convolution, deviation loss. Its loss is piecewise linear in
    θ, so ∇ by φ_i is also that by θ. In each step one subset is drawn with probability w_i in place of the sum over
    all. No epoch is selected: the last one is used. Only CutMix makes pseudo-anomalies, and the backbone is frozen.
    The rate is the one of 1e-3, 3e-3, 1e-2 and 3e-2 at which the training loss ends lowest.
    """

    name: ClassVar[str] = "AHL"
    differs: ClassVar[str] = "over DevNet alone, one subset per step, pseudo-anomalies by CutMix alone"
    budget: ClassVar[str] = "{steps} steps of 48, each after 3 inner steps of 48"

    @classmethod
    def network_like(cls, stored: Mapping[str, Tensor]) -> nn.Module:
        """C channels."""
        return TopPositions(stored["linear.weight"].shape[1])

    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Cluster the normals, build the subsets, and learn over them."""
        check_groups(self.name, data)
        (inputs,) = self.training_inputs([data.normals, data.pseudo, data.anomalies], context)
        subsets = heterogeneous_subsets(data, _clusters(data.normals, seed), np.random.default_rng(seed))
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            network = TopPositions(inputs.shape[-1]).to(context.device)
            adaptation = Adaptation(network, inputs, subsets, generator)
            importance = Importance()
        self._network = network
        self.losses = self._train(adaptation, importance)
        return self

    def _train(self, adaptation: Adaptation, importance: Importance) -> list[float]:
        epochs = math.ceil(self.steps / STEPS_PER_EPOCH)
        parameters, subsets = list(adaptation.network.parameters()), adaptation.subsets
        optimiser = torch.optim.Adam(parameters, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * STEPS_PER_EPOCH)
        losses = []
        for _ in range(epochs):
            weights = importance.weights(len(subsets))
            drawn = torch.multinomial(weights, STEPS_PER_EPOCH, replacement=True, generator=adaptation.generator)
            for number in drawn.tolist():
                loss, gradients = adaptation.gradients(subsets[number])
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT)
                optimiser.step()
                schedule.step()
                losses.append(loss)
            importance.observe(adaptation.judge())
        return [float(loss) for loss in losses]

    def anomaly_score(self, output: Tensor) -> Tensor:
        """(B, 1) → (B,)."""
        return output[:, 0]


def _clusters(normals: FeatureRows, seed: int) -> np.ndarray:
    """The cluster of each normal by K-means on standardised pooled statistics, (n,)."""
    z = torch.cat(list(StandardisedInput.fit("pooled", normals).batches(normals))).numpy()
    distinct = len(np.unique(z, axis=0))
    return KMeans(min(CLUSTERS, distinct), n_init=4, random_state=seed).fit_predict(z)
