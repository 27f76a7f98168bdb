"""What joint training starts from: the modules at step 0, and every training image as it enters each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, HeldOut
from mpfm_kedro.detectors.mpfm.modules import Logit, Modules
from mpfm_kedro.detectors.mpfm.rounds import Rounds
from mpfm_kedro.detectors.mpfm.training import TrainingSet
from mpfm_kedro.detectors.mpfm.velocity import ResidualNetwork

PENALTY = 1e-3  # C of the logistic regression that M_n starts as


def initial_modules(
    closed_forms: list[ClosedForm],
    held_out: HeldOut,
    z: Tensor,
    rounds: Rounds,
    parameters: Mapping[str, Any],
    seed: int,
) -> Modules:
    """The modules at step 0, in all rounds.

    Args:
        closed_forms: of all rounds.
        held_out: what they make of the normals that they leave out.
        z: standardised features of normals, then known anomalies with their views (n + m, d).
        rounds: what each round learns from.
        parameters: of the training stage.
        seed: of first weights.
    """
    modules, generator = Modules(parameters), torch.Generator().manual_seed(seed)
    flows = [closed_form.flow.state_dict(prefix="flow.") for closed_form in closed_forms]
    state = {name: torch.cat([flow[name] for flow in flows]) for name in flows[0]}
    n_rounds, n_prototypes, d = state["flow.prototypes.mean"].shape
    coupled, residual = "transport_start" not in modules.printed, "residual" in modules.printed
    if not coupled:  # networks start from nothing
        state = {name: value for name, value in state.items() if "velocity" not in name}
    sizes = n_rounds, d, parameters["hidden"], d if coupled else n_prototypes * (d + 1)
    network = ResidualNetwork.start(*sizes, generator, zero=coupled)
    network.state_dict(destination=state, prefix="flow.velocity.network.")

    step_0 = torch.empty(len(held_out.fold))
    for number, normals, x, p in held_out.enter(closed_forms):
        step_0[normals] = closed_forms[number].score_of(x, p).cpu()
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


def training_set(
    data: TrainingData,
    closed_forms: list[ClosedForm],
    held_out: HeldOut,
    z: Tensor,
    rounds: Rounds,
    parameters: Mapping[str, Any],
    context: Context,
) -> TrainingSet:
    """Every training image as it enters each round."""
    device, (n_rounds, n_normals) = context.device, rounds.normals.shape
    standardiser = closed_forms[0].standardiser
    source = StandardisedInput("maps", standardiser.map_center.cpu(), standardiser.map_spread.cpu())
    batch_size = parameters["normals_per_batch"] + (parameters["anomalies_per_batch"] if len(data.anomalies) else 0)
    (maps,) = training_inputs([source], [data.normals, data.anomalies], batch_size, context)
    entered = []
    for closed_form in closed_forms:
        x, p, mode = closed_form.enter(z[n_normals:].to(device))
        entered.append((x, p, closed_form.mean_squares(data.anomalies, mode).to(device)))
    x, p, squares = (torch.stack(tables) for tables in zip(*entered, strict=True))
    of_normals = (values.to(device).expand(n_rounds, -1, -1) for values in (held_out.p, held_out.squares))
    p, squares = (torch.cat(pair, 1) for pair in zip(of_normals, (p, squares), strict=True))
    return TrainingSet(
        offset=held_out.offset.to(device),
        group=held_out.group.to(device),
        center=torch.stack([closed_form.center for closed_form in closed_forms]),
        x=x,
        p=p,
        squares=squares,
        z=z.to(device),
        patches=lambda index: maps.batch(index).flatten(1, 2),
        learns=torch.from_numpy(rounds.learns).to(device),
    )
