"""The stages of a fit: prototypes in closed form, joint training, calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs
from mpfm_kedro.detectors.mpfm.calibration import SCORES, Evidence, joined
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, Initialised
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.modules import Logit, NormalityScore, ResidualScore, TopPositions
from mpfm_kedro.detectors.mpfm.objective import Forms, Modules
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.rounds import Rounds
from mpfm_kedro.detectors.mpfm.training import TrainingSet
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, NetworkVelocity, ResidualNetwork

PENALTY = 1e-3  # C of the logistic regression that M_n starts as


def initial_modules(
    initialised: Initialised,
    z: Tensor,
    n_normals: int,
    rounds: Rounds,
    forms: Forms,
    hidden: int,
    transport_steps: int,
    shares: list[float],
    from_closed_form: bool,
    seed: int,
) -> Modules:
    """The modules at step 0, in all rounds.

    Args:
        initialised: the closed forms.
        z: standardised features of normals, then known anomalies with their views (n + m, d).
        n_normals: n.
        rounds: what each round learns from.
        forms: of the objective.
        hidden: width of the velocity network.
        transport_steps: Euler steps of ψ.
        shares: of the positions, of each member of M_a.
        from_closed_form: False for the printed form, in which networks start from nothing.
        seed: of first weights.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = [closed_form.flow for closed_form in initialised.closed_forms]
    prototypes = PrototypeMixture(
        torch.cat([flow.prototypes.mean for flow in starts]).detach(),
        torch.cat([flow.prototypes.share for flow in starts]).detach(),
        torch.cat([flow.prototypes.scale for flow in starts]),
    )
    n_rounds, n_prototypes, d = prototypes.mean.shape
    velocity: CoupledVelocity | NetworkVelocity
    if from_closed_form:
        center, gain = (torch.cat([getattr(flow.velocity, name) for flow in starts]) for name in ("center", "gain"))
        velocity = CoupledVelocity(center, gain, ResidualNetwork(n_rounds, d, hidden, d, generator))
    else:
        network = ResidualNetwork(n_rounds, d, hidden, n_prototypes * (d + 1), generator, zero=False)
        velocity = NetworkVelocity(network, n_prototypes)
    flow = Flow(velocity, prototypes, transport_steps)
    held_out = initialised.held_out
    g = step_0_scores(initialised, rounds.fold)
    channels = held_out.squares.shape[1]
    r = held_out.squares.sum(1)
    m_r = ResidualScore(n_rounds, d if forms.residual else channels)
    if forms.residual:
        r = 2 * g
    first = (2 * torch.rand(len(shares), channels, generator=generator) - 1) / channels**0.5
    m_a = TopPositions(first.repeat(n_rounds, 1, 1), torch.zeros(n_rounds, len(shares)), shares)
    weight, bias = torch.zeros(n_rounds, d), torch.zeros(n_rounds)
    if from_closed_form and n_normals < len(z):
        weight, bias = _logistic_regressions(z.numpy(), n_normals, rounds)
    if forms.normality_target:
        weight, bias = -weight, -bias
    return Modules(flow, _logit(g, rounds), m_r, _logit(r, rounds), m_a, NormalityScore(weight, bias))


def _logit(score: Tensor, rounds: Rounds) -> Logit:
    """The logit of a score, by the held-out scores of the normals that each round learns from, (n,)."""
    learned = [score[torch.from_numpy(own)] for own in rounds.normals]
    return Logit(torch.stack([own.mean() for own in learned]), torch.stack([own.std(correction=0) for own in learned]))


def _logistic_regressions(z: np.ndarray, n_normals: int, rounds: Rounds) -> tuple[Tensor, Tensor]:
    """Logits of normality (R, d) and (R,): normals against anomalies, classes balanced, L2 penalty."""
    weights, biases = [], []
    label = np.arange(len(z)) < n_normals
    for own in np.concatenate([rounds.normals, rounds.anomalies], 1):
        fitted = LogisticRegression(C=PENALTY, class_weight="balanced", max_iter=500).fit(z[own], label[own])
        weights.append(torch.from_numpy(fitted.coef_[0]).float())
        biases.append(float(fitted.intercept_[0]))
    return torch.stack(weights), torch.tensor(biases)


def step_0_scores(initialised: Initialised, fold: np.ndarray) -> Tensor:
    """S_g at step 0 of each normal by the closed form without its fold, (n,)."""
    held_out, found = initialised.held_out, torch.empty(len(fold))
    for number, closed_form in enumerate(initialised.closed_forms[:-1]):
        own = torch.from_numpy(fold == number)
        x = closed_form.center.cpu()[held_out.group[own]] + held_out.offset[own]
        device = closed_form.device
        found[own] = closed_form.score_of(x.to(device), held_out.p[own].to(device)).cpu()
    return found


def training_set(
    data: TrainingData, initialised: Initialised, z: Tensor, rounds: Rounds, batch_size: int, context: Context
) -> TrainingSet:
    """Every training image as it enters each round."""
    held_out, device = initialised.held_out, context.device
    standardiser = initialised.closed_forms[-1].standardiser
    source = StandardisedInput("maps", standardiser.map_center.cpu(), standardiser.map_spread.cpu())
    (maps,) = training_inputs([source], [data.normals, data.anomalies], batch_size, context)
    top_share, of_anomalies = initialised.top_share, z[len(data.normals) :]
    entered = [_enter(each, of_anomalies, data.anomalies, top_share) for each in initialised.closed_forms]
    x, p, squares = (torch.stack(values).to(device) for values in zip(*entered, strict=True))
    return TrainingSet(
        offset=held_out.offset.to(device),
        group=held_out.group.to(device),
        center=torch.stack([each.center for each in initialised.closed_forms]).to(device),
        x=x,
        p=(held_out.p.to(device), p),
        squares=(held_out.squares.to(device), squares),
        z=z.to(device),
        patches=lambda index: maps.batch(index).flatten(1, 2),
        learns=torch.from_numpy(np.concatenate([rounds.normals, rounds.anomalies], 1)).to(device),
    )


@torch.no_grad()
def _enter(closed_form: ClosedForm, z: Tensor, rows: FeatureRows, top_share: float) -> tuple[Tensor, Tensor, Tensor]:
    """x (m, d), p (m, K) and squared residuals of patches (m, C) of anomalies in one round."""
    entered = closed_form.enter(z.to(closed_form.device))
    squares = closed_form.mean_squares(rows, entered.mode, top_share)
    return entered.x, entered.p, squares.to(entered.x)


@torch.no_grad()
def normal_evidence(
    normals: FeatureRows, initialised: Initialised, modules: Modules | None, rounds: Rounds, forms: Forms
) -> Evidence:
    """The six scores of each normal by the round that leaves it out."""
    held_out, fold = initialised.held_out, torch.from_numpy(rounds.fold)
    g0, r0 = step_0_scores(initialised, rounds.fold), held_out.squares.sum(1)
    found = torch.stack([g0, g0, torch.zeros_like(g0), r0, r0, torch.zeros_like(g0)], 1)
    if modules is not None:
        standardiser, device = initialised.closed_forms[-1].standardiser, modules.m_n.weight.device
        center = torch.stack([each.center for each in initialised.closed_forms]).to(device)
        for part, maps in normals.map_batches(device):
            own, place = fold[part], torch.arange(part.stop - part.start)
            x = center[:, held_out.group[part]] + held_out.offset[part].to(device)
            p, squares = (
                value[part].to(device).expand(len(rounds), -1, -1) for value in (held_out.p, held_out.squares)
            )
            psi = modules.flow.psi(x, p)
            nll = modules.flow.score(psi)
            scores = (
                nll * x.shape[2] if forms.likelihood else modules.m_g(nll),
                modules.m_a(standardiser.patches(maps))[0],
                modules.r_logit(modules.m_r(modules.image_squares(psi) if forms.residual else squares)),
                -modules.m_n(standardiser.z(torch.from_numpy(normals.pooled[part]).to(device))),
            )
            for column, score in zip((1, 2, 4, 5), scores, strict=True):
                found[part, column] = score[own, place].cpu()
    return Evidence(found, held_out.p, held_out.mode, torch.ones(len(found)))


@torch.no_grad()
def anomaly_evidence(anomalies: FeatureRows, models: Sequence[MPFM], rounds: Rounds) -> Evidence:
    """The six scores of each known anomaly and view by the round that leaves it out.

    Args:
        anomalies: m known anomalies and views.
        models: of all rounds; their calibration is not used.
        rounds: what each of them leaves out.
    """
    views = np.bincount(anomalies.source)[anomalies.source]
    found = []
    for model, learned in zip(models, rounds.anomalies, strict=True):
        rows = anomalies.take(np.flatnonzero(~learned))
        for part, maps in rows.map_batches(model.closed_form.device):
            z = model.closed_form.standardiser.z(torch.from_numpy(rows.pooled[part]).to(maps.device))
            entered = model.closed_form.enter(z)
            raw = model.raw_scores(z, maps, entered)
            count = torch.from_numpy(1 / views[~learned][part]).float()
            found.append(Evidence(raw.image.cpu(), entered.p.cpu(), entered.mode.cpu(), count))
    if found:
        return joined(found)
    n_groups, nothing = len(models[0].closed_form.groups.center), torch.empty(0)
    return Evidence(torch.empty(0, len(SCORES)), torch.empty(0, n_groups), nothing.long(), nothing)
