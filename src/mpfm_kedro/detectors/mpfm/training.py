"""Joint training of the flow and the four modules: all rounds of cross-fitting at once, last iteration.

It starts from the modules at step 0 and from every training image as it enters each round.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from mpfm_kedro.detectors.base import Artefact, Context, StateStore
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs
from mpfm_kedro.detectors.mpfm.closed_form import CrossFit
from mpfm_kedro.detectors.mpfm.modules import Logit, Modules
from mpfm_kedro.detectors.mpfm.objective import Batch, Losses, losses
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds
from mpfm_kedro.detectors.mpfm.velocity import ResidualNetwork
from mpfm_kedro.parameters import TrainingParameters

PENALTY = 1e-3  # C of the logistic regression that M_n starts as
DECAY = 0.1
MONITORED = 256  # normals whose prototypes are counted once per epoch


@dataclass(frozen=True)
class TrainingSet:
    """What a run may learn from: n normals, then m views of known anomalies."""

    offset: Tensor  # x − m_c of the normals by the closed form without their fold (n, d)
    group: Tensor  # c (n,)
    center: Tensor  # m of each round (R, K, d)
    x: Tensor  # whitened anomalies in each round (R, m, d)
    p: Tensor  # group weights of all in each round (R, n + m, K)
    squares: Tensor  # of the residuals of patches of all in each round (R, n + m, C)
    z: Tensor  # standardised features of all (n + m, d)
    patches: Callable[[Tensor], Tensor]  # gives the standardised patches of some of them, (B,) → (B, X, C)
    learns: Tensor  # which of all images each round learns from (R, n + m), bool

    def x_of_normals(self, normals: Tensor | slice) -> Tensor:
        """x of some normals as if each round had left them out, (R, b, d)."""
        return self.center[:, self.group[normals]] + self.offset[normals]

    def batch(self, normals: Tensor, anomalies: Tensor, *, with_positions: bool = True) -> Batch:
        """Some normals (b,) and anomalies (a,) as a batch, with their patches or without."""
        index = torch.cat([normals, len(self.offset) + anomalies])
        parts = self.learns[:, index].float().split([len(normals), len(anomalies)], 1)
        return Batch(
            x=torch.cat([self.x_of_normals(normals), self.x[:, anomalies]], 1),
            p=self.p[:, index],
            squares=self.squares[:, index],
            z=self.z[index],
            v=self.patches(index) if with_positions else None,
            abnormal=torch.arange(len(index), device=index.device) >= len(normals),
            weight=torch.cat([part / part.sum(1, keepdim=True).clamp_min(1) for part in parts], 1),
        )

    def draw(self, parameters: TrainingParameters, generator: torch.Generator) -> Iterator[Tensor]:
        """Random normals and random views of known anomalies; none where none is known."""
        sizes = len(self.offset), self.x.shape[1]
        numbers = parameters.normals_per_batch, parameters.anomalies_per_batch
        for size, number in zip(sizes, numbers, strict=True):
            yield torch.randint(max(1, size), (number if size else 0,), generator=generator).to(self.x.device)


def initial_modules(cross_fit: CrossFit, parameters: Mapping[str, Any], seed: int) -> Modules:
    """The modules at step 0, in all rounds, from the models of all rounds before training."""
    _, rounds, models, held_out, z = cross_fit
    modules, generator = Modules(parameters), torch.Generator().manual_seed(seed)
    flows = [model.flow.state_dict(prefix="flow.") for model in models]
    state = {name: torch.cat([flow[name] for flow in flows]) for name in flows[0]}
    n_rounds, n_prototypes, d = state["flow.prototypes.mean"].shape
    coupled, residual = "transport_start" not in modules.printed, "residual" in modules.printed
    if not coupled:  # networks start from nothing
        state = {name: value for name, value in state.items() if "velocity" not in name}
    sizes = n_rounds, d, parameters["hidden"], d if coupled else n_prototypes * (d + 1)
    network = ResidualNetwork.start(*sizes, generator, zero=coupled)
    network.state_dict(destination=state, prefix="flow.velocity.network.")

    step_0 = torch.empty(len(held_out.fold))
    for model, normals, x, p in cross_fit.held_out_normals():
        step_0[normals] = model.step_0(x, p).cpu()
    _logit(step_0, rounds).state_dict(destination=state, prefix="m_g.")
    _logit(2 * step_0 if residual else held_out.squares.sum(1), rounds).state_dict(destination=state, prefix="r_logit.")
    members, channels = len(modules.m_a.shares), held_out.squares.shape[1]
    state["m_r.log_weight"] = torch.zeros(n_rounds, 1, d if residual else channels)
    first = (2 * torch.rand(members, channels, generator=generator) - 1) / channels**0.5
    state |= {"m_a.weight": first.repeat(n_rounds, 1, 1), "m_a.bias": torch.zeros(n_rounds, members)}
    weight, bias = torch.zeros(n_rounds, d), torch.zeros(n_rounds)
    if coupled and len(step_0) < len(z):
        weight, bias = _logistic_regressions(z.numpy(), len(step_0), rounds)
    sign = -1 if "normality_target" in modules.printed else 1
    state |= {"m_n.weight": sign * weight, "m_n.bias": sign * bias}
    modules.load_state_dict(state)
    return modules


def _logit(score: Tensor, rounds: Rounds) -> Logit:
    """The logit of a score, by the held-out scores of the normals that each round learns from, (n,)."""
    learned = [score[torch.from_numpy(normals)] for normals in rounds.normals]
    spread = torch.stack([scores.std(correction=0) for scores in learned])
    return Logit.start(torch.stack([scores.mean() for scores in learned]), spread)


def _logistic_regressions(z: np.ndarray, n_normals: int, rounds: Rounds) -> tuple[Tensor, Tensor]:
    """Logits of normality (R, d) and (R,): normals against anomalies, classes balanced, L2 penalty."""
    label = np.arange(len(z)) < n_normals
    fits = [
        LogisticRegression(C=PENALTY, class_weight="balanced", max_iter=500).fit(z[learns], label[learns])
        for learns in rounds.learns
    ]
    weight, bias = (np.concatenate([getattr(fit, name) for fit in fits]) for name in ("coef_", "intercept_"))
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def training_set(cross_fit: CrossFit, parameters: Mapping[str, Any], context: Context) -> TrainingSet:
    """Every training image as it enters each round."""
    data, rounds, models, held_out, z = cross_fit
    device, (n_rounds, n_normals) = context.device, rounds.normals.shape
    standardiser = models[0].standardiser
    source = StandardisedInput("maps", standardiser.map_center.cpu(), standardiser.map_spread.cpu())
    batch_size = parameters["normals_per_batch"] + (parameters["anomalies_per_batch"] if len(data.anomalies) else 0)
    (maps,) = training_inputs([source], [data.normals, data.anomalies], batch_size, context)
    entered = []
    for model in models:
        x, p, mode = model.enter(z[n_normals:].to(device))
        entered.append((x, p, model.mean_squares(data.anomalies, mode).to(device)))
    x, p, squares = (torch.stack(tables) for tables in zip(*entered, strict=True))
    of_normals = (values.to(device).expand(n_rounds, -1, -1) for values in (held_out.p, held_out.squares))
    p, squares = (torch.cat(pair, 1) for pair in zip(of_normals, (p, squares), strict=True))
    return TrainingSet(
        offset=held_out.offset.to(device),
        group=held_out.group.to(device),
        center=torch.stack([model.center for model in models]),
        x=x,
        p=p,
        squares=squares,
        z=z.to(device),
        patches=lambda index: maps.batch(index).flatten(1, 2),
        learns=torch.from_numpy(rounds.learns).to(device),
    )


def train(
    modules: Modules, data: TrainingSet, parameters: TrainingParameters, seed: int, checkpoint: StateStore | None = None
) -> list[dict[str, float]]:
    """Train in place and return one row of history per epoch, of the round that leaves nothing out.

    The checkpoint is where an interrupted training of the same run stopped; it is saved after each epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = parameter_groups(modules, parameters)
    optimiser = torch.optim.AdamW(groups, weight_decay=parameters.weight_decay, fused=True)
    rates = [group["lr"] for group in groups]
    stored = checkpoint.load() if checkpoint else None
    history = _resume(stored, modules, optimiser, generator) if stored else []
    for epoch in range(len(history), parameters.epochs):
        decay = DECAY ** (epoch * parameters.head_decays // parameters.head_epochs)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (decay if group["name"] == "m_a" else 1.0)
        with_positions, steps = epoch < parameters.head_epochs, []
        for _ in range(parameters.iterations_per_epoch):
            batch = data.batch(*data.draw(parameters, generator), with_positions=with_positions)
            terms, mutual = losses(modules, batch, parameters, generator)
            total = terms.total(parameters.mim_weight)
            optimiser.zero_grad(set_to_none=True)
            total.sum().backward()
            for group in optimiser.param_groups:
                clip_by_round(group["params"], parameters.clip_norm)
            optimiser.step()
            steps.append(torch.stack([*terms, total, mutual])[:, FINAL].detach())
        row = {"epoch": epoch + 1} | _describe(torch.stack(steps).mean(0), modules, data)
        if not with_positions:
            row["score_a"] = history[-1]["score_a"]
            row["total"] += row["score_a"]
        history.append(row)
        if checkpoint:
            checkpoint.save(_state(modules, optimiser, generator, history))
    return history


def parameter_groups(modules: Modules, parameters: TrainingParameters) -> list[dict[str, Any]]:
    """The parameters of each module with its rate."""
    groups: dict[str, tuple[list[nn.Module], float]] = {
        "flow": ([modules.flow], parameters.learning_rate),
        "m_g": ([modules.m_g], parameters.learning_rate),
        "m_r": ([modules.m_r, modules.r_logit], parameters.learning_rate),
        "m_a": ([modules.m_a], parameters.head_learning_rate),
        "m_n": ([modules.m_n], parameters.normality_learning_rate),
    }
    return [
        {"name": name, "params": [p for module in members for p in module.parameters()], "lr": rate}
        for name, (members, rate) in groups.items()
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


def _state(
    modules: Modules, optimiser: torch.optim.Optimizer, generator: torch.Generator, history: list[dict[str, float]]
) -> Artefact:
    """Everything that training needs to resume."""
    tensors = {"generator": generator.get_state()}
    modules.state_dict(destination=tensors, prefix="modules.")
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value for name, value in moments.items()}
    copies = {name: value.cpu().clone() for name, value in tensors.items()}
    return Artefact(copies, {"epoch": len(history), "history": list(history)})


def _resume(
    state: Artefact, modules: Modules, optimiser: torch.optim.Optimizer, generator: torch.Generator
) -> list[dict[str, float]]:
    """Set what ``_state`` stored, and return the history."""
    moments = {number: state.part(f"optimiser.{number}") for number, _ in enumerate(modules.parameters())}
    modules.load_state_dict(state.part("modules"))
    optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
    generator.set_state(state.tensors["generator"])
    return list(state.details["history"])


@torch.no_grad()
def _describe(means: Tensor, modules: Modules, data: TrainingSet) -> dict[str, float]:
    """The seven terms, their total, I(ψ; c) / log K, and how many prototypes the first normals use."""
    *terms, total, mutual = means.tolist()
    prototypes, some = modules.flow.prototypes, slice(min(MONITORED, len(data.offset)))
    psi = modules.flow.psi(data.x_of_normals(some), data.p[:, some])
    used = prototypes.posterior(prototypes.squared_distances(psi))[FINAL].argmax(1).unique().numel()
    largest = math.log(prototypes.mean.shape[1])
    return dict(zip(Losses._fields, terms, strict=True)) | {
        "total": total,
        "information_share": mutual / largest if largest > 0 else 0.0,
        "used_prototypes": int(used),
    }
