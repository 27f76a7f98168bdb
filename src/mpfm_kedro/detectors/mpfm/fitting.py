"""What joint training starts from: the modules at step 0, and every training image as it enters each round."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs
from mpfm_kedro.detectors.mpfm.closed_form import Initialised
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.modules import Forms, Logit, Modules, NormalityScore, ResidualScore, TopPositions
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.rounds import Rounds
from mpfm_kedro.detectors.mpfm.training import TrainingSet
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, NetworkVelocity, ResidualNetwork
from mpfm_kedro.parameters import TrainingParameters

PENALTY = 1e-3  # C of the logistic regression that M_n starts as


def initial_modules(
    initialised: Initialised,
    z: Tensor,
    rounds: Rounds,
    forms: Forms,
    parameters: TrainingParameters,
    from_closed_form: bool,
    seed: int,
) -> Modules:
    """The modules at step 0, in all rounds.

    Args:
        initialised: the closed forms.
        z: standardised features of normals, then known anomalies with their views (n + m, d).
        rounds: what each round learns from.
        forms: of the objective.
        parameters: sizes of the modules.
        from_closed_form: False for the printed form, in which networks start from nothing.
        seed: of first weights.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = [closed_form.flow for closed_form in initialised.closed_forms]
    state = {name: torch.cat([flow.state_dict()[name] for flow in starts]) for name in starts[0].state_dict()}
    center, gain = state["velocity.center"], state["velocity.gain"]
    n_rounds, n_prototypes, d = center.shape
    velocity: CoupledVelocity | NetworkVelocity
    if from_closed_form:
        velocity = CoupledVelocity(center, gain, ResidualNetwork.start(n_rounds, d, parameters.hidden, d, generator))
    else:
        outputs = n_prototypes * (d + 1)
        network = ResidualNetwork.start(n_rounds, d, parameters.hidden, outputs, generator, zero=False)
        velocity = NetworkVelocity(network, n_prototypes)
    prototypes = PrototypeMixture(**{name: state[f"prototypes.{name}"] for name in ("mean", "logit", "scale")})

    channels = initialised.squares.shape[1]
    g, r = initialised.step_0_scores(), initialised.squares.sum(1)
    shares = [share for share in parameters.head_top_shares for _ in range(parameters.head_members)]
    first = (2 * torch.rand(len(shares), channels, generator=generator) - 1) / channels**0.5
    weight, bias = torch.zeros(n_rounds, d), torch.zeros(n_rounds)
    if from_closed_form and len(initialised.fold) < len(z):
        weight, bias = _logistic_regressions(z.numpy(), len(initialised.fold), rounds)
    sign = -1 if forms.normality_target else 1
    return Modules(
        Flow(velocity, prototypes, parameters.transport_steps),
        _logit(g, rounds),
        ResidualScore(log_weight=torch.zeros(n_rounds, 1, d if forms.residual else channels)),
        _logit(2 * g if forms.residual else r, rounds),
        TopPositions(shares, weight=first.repeat(n_rounds, 1, 1), bias=torch.zeros(n_rounds, len(shares))),
        NormalityScore(weight=sign * weight, bias=sign * bias),
        forms,
    )


def _logit(score: Tensor, rounds: Rounds) -> Logit:
    """The logit of a score, by the held-out scores of the normals that each round learns from, (n,)."""
    learned = [score[torch.from_numpy(normals)] for normals in rounds.normals]
    spread = torch.stack([scores.std(correction=0) for scores in learned])
    return Logit(torch.stack([scores.mean() for scores in learned]), spread)


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
    data: TrainingData, initialised: Initialised, z: Tensor, rounds: Rounds, batch_size: int, context: Context
) -> TrainingSet:
    """Every training image as it enters each round."""
    device, (n_rounds, n_normals) = context.device, rounds.normals.shape
    standardiser = initialised.closed_forms[0].standardiser
    source = StandardisedInput("maps", standardiser.map_center.cpu(), standardiser.map_spread.cpu())
    (maps,) = training_inputs([source], [data.normals, data.anomalies], batch_size, context)
    tables: list[list[Tensor]] = [[], [], []]
    for closed_form in initialised.closed_forms:
        x, p, mode = closed_form.enter(z[n_normals:].to(device))
        squares = closed_form.mean_squares(data.anomalies, mode, initialised.top_share)
        for table, of_round in zip(tables, (x, p, squares.to(device)), strict=True):
            table.append(of_round)
    x, p, squares = (torch.stack(table) for table in tables)
    of_normals = (values.to(device).expand(n_rounds, -1, -1) for values in (initialised.p, initialised.squares))
    p, squares = (torch.cat(pair, 1) for pair in zip(of_normals, (p, squares), strict=True))
    return TrainingSet(
        offset=initialised.offset.to(device),
        group=initialised.group.to(device),
        center=initialised.center,
        x=x,
        p=p,
        squares=squares,
        z=z.to(device),
        patches=lambda index: maps.batch(index).flatten(1, 2),
        learns=torch.from_numpy(rounds.learns).to(device),
    )
