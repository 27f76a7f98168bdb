"""The training loop: batches from stored features, AdamW, history, and a state to resume from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.modes import Path, Start
from mpfm_kedro.detectors.mpfm.mutual_information import information, mim_loss
from mpfm_kedro.detectors.mpfm.objective import KNOWN, NORMAL, PSEUDO, Batch, Losses, Options, losses


@dataclass(frozen=True)
class TransportedRows:
    """Images with what is known in closed form of their transport into the prototype space.

    Args:
        z: standardised features (n, d).
        start: ψ_0 (n, d) and log ω_j N (n, J) by modes fitted without the sample, or None without a closed-form start.
        path: to z_T coupled to z_0 inside its mode, or None when z_T is drawn from the prototypes (printed).
    """

    z: np.ndarray
    start: Start | None = None
    path: Path | None = None


@dataclass(frozen=True)
class TrainingSet:
    """What a run may learn from: normals, pseudo-anomalies made of them, known anomalies with their views."""

    normals: TransportedRows
    pseudo: TransportedRows
    anomalies: TransportedRows


@dataclass(frozen=True)
class Schedule:
    """How long and with which batches."""

    epochs: int
    iterations_per_epoch: int
    normals_per_batch: int
    anomalies_per_batch: int
    pseudo_share: float
    learning_rate: float
    weight_decay: float
    clip_norm: float


@dataclass
class State:
    """Everything that training needs to resume after ``epoch`` epochs; ``model`` holds what training changes."""

    epoch: int = 0
    model: dict[str, Any] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    generator: Tensor | None = None
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    flow: Flow,
    data: TrainingSet,
    schedule: Schedule,
    options: Options,
    seed: int,
    state: State | None = None,
    checkpoint: Callable[[State], None] | None = None,
) -> list[dict[str, float]]:
    """Train in place and return one row of history per epoch.

    Args:
        flow: the initialised flow, on its device.
        data: what the run may learn from.
        schedule: length and batches.
        options: the objective.
        seed: of batches and noise.
        state: where an interrupted training of the same run stopped.
        checkpoint: called after each epoch with the state.
    """
    device = flow.device
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(
        flow.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True
    )
    state = state or State()
    if state.epoch:
        assert state.generator is not None
        flow.load_state_dict(state.model, strict=False)
        optimiser.load_state_dict(state.optimiser)
        generator.set_state(state.generator)
    history = list(state.history)
    for epoch in range(state.epoch, schedule.epochs):
        steps = []
        for _ in range(schedule.iterations_per_epoch):
            batch = draw_batch(data, schedule, generator, device)
            terms, info = losses(flow, batch, options, generator)
            total = terms.total(options)
            optimiser.zero_grad(set_to_none=True)
            total.backward()
            torch.nn.utils.clip_grad_norm_(flow.parameters(), schedule.clip_norm)
            optimiser.step()
            steps.append(torch.stack([*terms, total, info.mutual]).detach())
        means = _means(torch.stack(steps), len(flow.prototypes.logit))
        history.append({"epoch": epoch + 1} | means | monitor(flow, data.normals, options, device))
        if checkpoint is not None:
            checkpoint(
                State(
                    epoch + 1,
                    {name: value.detach() for name, value in flow.named_parameters()},
                    optimiser.state_dict(),
                    generator.get_state(),
                    list(history),
                )
            )
    return history


def draw_batch(data: TrainingSet, schedule: Schedule, generator: torch.Generator, device: torch.device) -> Batch:
    """Normals, a share of them replaced by pseudo-anomalies, and known anomalies in random views."""
    n_pseudo = min(round(schedule.pseudo_share * schedule.normals_per_batch), schedule.normals_per_batch - 1)
    n_pseudo = n_pseudo if len(data.pseudo.z) else 0
    n_known = schedule.anomalies_per_batch if len(data.anomalies.z) else 0
    sizes = (schedule.normals_per_batch - n_pseudo, n_pseudo, n_known)
    pieces = []
    for group, size in zip((data.normals, data.pseudo, data.anomalies), sizes, strict=True):
        if size:
            pieces.append((group, torch.randint(len(group.z), (size,), generator=generator).numpy()))
    z = np.concatenate([group.z[index] for group, index in pieces])
    start = _gather([(group.start, index) for group, index in pieces], device)
    path = _gather([(group.path, index) for group, index in pieces], device)
    return Batch(
        z=_copied(torch.from_numpy(z).float(), device),
        start=None if start is None else Start(*start),
        path=None if path is None else Path(*path),
        label=torch.tensor([NORMAL] * sizes[0] + [PSEUDO] * sizes[1] + [KNOWN] * sizes[2], device=device),
    )


def _gather(
    pieces: list[tuple[tuple[Tensor, ...] | None, np.ndarray]], device: torch.device
) -> tuple[Tensor, ...] | None:
    """Rows of each tensor of each piece, joined; None unless every piece has them."""
    known = [[tensor[index] for tensor in tensors] for tensors, index in pieces if tensors is not None]
    if len(known) < len(pieces):
        return None
    return tuple(_copied(torch.cat(parts), device) for parts in zip(*known, strict=True))


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on the device; to CUDA from pinned memory, while the GPU still works on the step before.

    A batch is a few megabytes, so copying it costs less than keeping all paths (n, J, r) in the GPU's memory. That
    the copies overlap was not measured: no test of this project has run on a real GPU.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def monitor(flow: Flow, normals: TransportedRows, options: Options, device: torch.device) -> dict[str, float]:
    """Once per epoch, on up to 256 normals: entropy of the assignments, used prototypes, size of the MIM gradient."""
    z = torch.from_numpy(normals.z[:256]).float().to(device)
    start = _gather([(normals.start, np.arange(len(z)))], device)
    psi = flow.psi(z, None if start is None else Start(*start))
    posterior = flow.prototypes.posterior(psi, options.mim_sharpness)
    loss = mim_loss(posterior, flow.prototypes.weight, options.printed_mutual_information)
    gradients = torch.autograd.grad(loss, list(flow.parameters()), allow_unused=True)
    size = sum(float(g.square().sum()) for g in gradients if g is not None) ** 0.5
    return {
        "assignment_entropy": float(information(posterior.detach()).marginal_entropy),
        "used_prototypes": int(posterior.detach().argmax(1).unique().numel()),
        "mim_gradient": size,
    }


def _means(steps: Tensor, n_prototypes: int) -> dict[str, float]:
    """Means of each term, their total and the share of the information over an epoch, (steps, terms + 2).

    They are read once per epoch: reading a value makes the CPU wait for the GPU.
    """
    sums = dict.fromkeys([*Losses._fields, "total", "information_share"], 0.0)
    for *terms, mutual in steps.tolist():
        share = mutual / float(np.log(n_prototypes)) if n_prototypes > 1 else 0.0
        for name, value in zip(sums, [*terms, share], strict=True):
            sums[name] += value / len(steps)
    return sums
