"""Joint training of the flow and the four modules: all rounds of cross-fitting at once, last iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.objective import Batch, Forms, Losses, Modules, losses, total
from mpfm_kedro.detectors.mpfm.rounds import FINAL

DECAY = 0.1
MONITORED = 256  # normals whose prototypes are counted once per epoch


@dataclass(frozen=True)
class TrainingSet:
    """What a run may learn from: n normals, then m views of known anomalies.

    Args:
        offset: x − m_c of the normals by the closed form without their fold (n, d).
        group: c (n,).
        center: m of each round (R, K, d).
        x: whitened anomalies in each round (R, m, d).
        p: group weights, of the normals (n, K) and of the anomalies in each round (R, m, K).
        squares: of the residuals of patches, of the normals (n, C) and of the anomalies in each round (R, m, C).
        z: standardised features of all (n + m, d).
        patches: gives the standardised patches of some of them, (B,) → (B, X, C).
        learns: which of all images each round learns from (R, n + m), bool.
    """

    offset: Tensor
    group: Tensor
    center: Tensor
    x: Tensor
    p: tuple[Tensor, Tensor]
    squares: tuple[Tensor, Tensor]
    z: Tensor
    patches: Callable[[Tensor], Tensor]
    learns: Tensor

    @property
    def sizes(self) -> tuple[int, int]:
        """n and m."""
        return len(self.offset), self.x.shape[1]

    def batch(self, normals: Tensor, anomalies: Tensor, with_positions: bool = True) -> Batch:
        """Some normals (b,) and anomalies (a,) as a batch, with their patches or without."""
        n, _ = self.sizes
        rounds = len(self.learns)
        x = self.center[:, self.group[normals]] + self.offset[normals]
        of_normals = [table[0][normals].expand(rounds, -1, -1) for table in (self.p, self.squares)]
        of_anomalies = [table[1][:, anomalies] for table in (self.p, self.squares)]
        p, squares = (torch.cat(pair, 1) for pair in zip(of_normals, of_anomalies, strict=True))
        index = torch.cat([normals, n + anomalies])
        parts = self.learns[:, index].float().split([len(normals), len(anomalies)], 1)
        return Batch(
            x=torch.cat([x, self.x[:, anomalies]], 1),
            p=p,
            squares=squares,
            z=self.z[index],
            v=self.patches(index) if with_positions else None,
            abnormal=torch.arange(len(index), device=x.device) >= len(normals),
            weight=torch.cat([part / part.sum(1, keepdim=True).clamp_min(1) for part in parts], 1),
        )


@dataclass(frozen=True)
class Schedule:
    """How long, with which batches and at which rates.

    Args:
        epochs: 50 in the paper.
        iterations_per_epoch: 20 in the paper.
        normals_per_batch: b.
        anomalies_per_batch: a, views of known anomalies.
        learning_rate: of the flow, M_g and M_r.
        head_epochs: M_a converges sooner than the flow and is kept after so many epochs.
        head_learning_rate: of M_a at first.
        head_decays: how often the rate of M_a is divided by ten along its epochs.
        normality_learning_rate: of M_n.
        weight_decay: of AdamW.
        clip_norm: of the gradient of each module in each round.
    """

    epochs: int
    iterations_per_epoch: int
    normals_per_batch: int
    anomalies_per_batch: int
    learning_rate: float
    head_epochs: int
    head_learning_rate: float
    head_decays: int
    normality_learning_rate: float
    weight_decay: float
    clip_norm: float


@dataclass
class State:
    """Everything that training needs to resume after ``epoch`` epochs."""

    epoch: int = 0
    modules: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    generator: Tensor | None = None
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    modules: Modules,
    data: TrainingSet,
    schedule: Schedule,
    forms: Forms,
    seed: int,
    state: State | None = None,
    checkpoint: Callable[[State], None] | None = None,
) -> list[dict[str, float]]:
    """Train in place and return one row of history per epoch, of the round that leaves nothing out.

    Args:
        modules: initialised, on their device.
        data: what the run may learn from.
        schedule: length, batches and rates.
        forms: the objective.
        seed: of batches, times and groups.
        state: where an interrupted training of the same run stopped.
        checkpoint: called after each epoch with the state.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = parameter_groups(modules, schedule)
    optimiser = torch.optim.AdamW(groups, weight_decay=schedule.weight_decay, fused=True)
    rates = [group["lr"] for group in groups]
    state = state or State()
    if state.generator is not None:
        modules.load_state_dict(state.modules)
        optimiser.load_state_dict(state.optimiser)
        generator.set_state(state.generator)
    history = list(state.history)
    for epoch in range(state.epoch, schedule.epochs):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (head_decay(epoch, schedule) if group["name"] == "m_a" else 1.0)
        with_positions, steps = epoch < schedule.head_epochs, []
        for _ in range(schedule.iterations_per_epoch):
            normals, anomalies = draw(data.sizes, schedule, generator, modules.m_n.weight.device)
            batch = data.batch(normals, anomalies, with_positions)
            terms, mutual = losses(modules, batch, forms, generator)
            whole = total(terms, forms.mim_weight)
            optimiser.zero_grad(set_to_none=True)
            whole.sum().backward()
            for group in optimiser.param_groups:
                clip_by_round(group["params"], schedule.clip_norm)
            optimiser.step()
            steps.append(torch.stack([*terms, whole, mutual])[:, FINAL].detach())
        row = {"epoch": epoch + 1} | _describe(torch.stack(steps).mean(0), modules, data)
        if not with_positions:
            row["score_a"] = history[-1]["score_a"]
            row["total"] += row["score_a"]
        history.append(row)
        if checkpoint is not None:
            checkpoint(
                State(epoch + 1, modules.state_dict(), optimiser.state_dict(), generator.get_state(), list(history))
            )
    return history


def parameter_groups(modules: Modules, schedule: Schedule) -> list[dict[str, Any]]:
    """The parameters of each module with its rate."""
    rates: dict[str, tuple[list[nn.Module], float]] = {
        "flow": ([modules.flow], schedule.learning_rate),
        "m_g": ([modules.m_g], schedule.learning_rate),
        "m_r": ([modules.m_r, modules.r_logit], schedule.learning_rate),
        "m_a": ([modules.m_a], schedule.head_learning_rate),
        "m_n": ([modules.m_n], schedule.normality_learning_rate),
    }
    return [
        {"name": name, "params": [p for module in own for p in module.parameters()], "lr": rate}
        for name, (own, rate) in rates.items()
    ]


def head_decay(epoch: int, schedule: Schedule) -> float:
    """What the rate of M_a is multiplied with."""
    return DECAY ** (epoch * schedule.head_decays // schedule.head_epochs)


def draw(sizes: tuple[int, int], schedule: Schedule, generator: torch.Generator, device: torch.device) -> list[Tensor]:
    """Random normals and random views of known anomalies; none where none is known."""
    numbers = schedule.normals_per_batch, schedule.anomalies_per_batch
    return [
        torch.randint(max(1, size), (number if size else 0,), generator=generator).to(device)
        for size, number in zip(sizes, numbers, strict=True)
    ]


def clip_by_round(parameters: list[Tensor], norm: float) -> None:
    """Scale the gradients of each round down to a norm: rounds do not know of each other."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    size = torch.stack([g.view(len(g), -1).square().sum(1) for g in gradients]).sum(0).sqrt()
    factor = (norm / size.clamp_min(1e-12)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.dim() - 1)))


@torch.no_grad()
def _describe(means: Tensor, modules: Modules, data: TrainingSet) -> dict[str, float]:
    """The seven terms, their total, I(ψ; c) / log K, and how many prototypes the first normals use."""
    *terms, whole, mutual = means.tolist()
    prototypes, some = modules.flow.prototypes, slice(MONITORED)
    x = data.center[:, data.group[some]] + data.offset[some]
    psi = modules.flow.psi(x, data.p[0][some].expand(len(x), -1, -1))
    used = prototypes.posterior(prototypes.squared_distances(psi))[FINAL].argmax(1).unique().numel()
    largest = math.log(prototypes.mean.shape[1])
    return dict(zip(Losses._fields, terms, strict=True)) | {
        "total": whole,
        "information_share": mutual / largest if largest > 0 else 0.0,
        "used_prototypes": int(used),
    }
