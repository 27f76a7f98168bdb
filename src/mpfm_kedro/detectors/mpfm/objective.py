"""One objective: L = L_Ma + L_Mn + L_Mr + L_Mg + L_flow^n + L_flow^a + λ L_mim."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from mpfm_kedro.detectors.mpfm.flow import Flow, path_point
from mpfm_kedro.detectors.mpfm.modules import Logit, NormalityScore, ResidualScore, TopPositions
from mpfm_kedro.detectors.mpfm.mutual_information import information, mim_loss

MARGIN = 5.0  # how far S_a of anomalies shall deviate, in units of the prior N(0, 1) of normals' scores


@dataclass(frozen=True)
class Batch:
    """One step's images, normals first, as each of R rounds sees them.

    Args:
        x: whitened features (R, B, d), normals by the closed form without their fold.
        p: group weights (R, B, K).
        squares: of the residuals of patches by channel (R, B, C).
        z: standardised features (B, d).
        v: standardised patches (B, X, C); None where M_a does not take part.
        abnormal: (B,), bool.
        weight: what each image counts in each round (R, B); normals and anomalies sum up to 1 each, and what a round
            leaves out counts 0.
    """

    x: Tensor
    p: Tensor
    squares: Tensor
    z: Tensor
    v: Tensor | None
    abnormal: Tensor
    weight: Tensor

    @property
    def normals(self) -> Tensor:
        """The weights of the normals, 0 for anomalies (R, B)."""
        return self.weight * ~self.abnormal

    @property
    def anomalies(self) -> Tensor:
        """The weights of the anomalies, 0 for normals (R, B)."""
        return self.weight * self.abnormal


class Losses(NamedTuple):
    """The seven terms, of each round (R,)."""

    score_a: Tensor
    score_n: Tensor
    score_r: Tensor
    score_g: Tensor
    flow_n: Tensor
    flow_a: Tensor
    mim: Tensor


@dataclass(frozen=True)
class Forms:
    """Weights of the objective, and which of its terms have the printed form (docs/method.md).

    Args:
        mim_weight: λ.
        mim_sharpness: of the posterior of MIMR.
        push_margin: of the bounded push of anomalies.
        mutual_information: printed: minimises I(ψ; c).
        normality_target: printed: M_n learns y, and is subtracted all the same.
        velocity_target: printed: u = (x_T − x_0) / t.
        push: printed: E[log q] of anomalies is minimised, without a bound.
        likelihood: printed: M_g's raw −log p, of order d, is the logit.
        coupling: printed: x_T is drawn independently of x_0.
        residual: printed: M_r reads the residual of the image, not of its patches.
    """

    mim_weight: float
    mim_sharpness: float
    push_margin: float
    mutual_information: bool = False
    normality_target: bool = False
    velocity_target: bool = False
    push: bool = False
    likelihood: bool = False
    coupling: bool = False
    residual: bool = False


class Modules(nn.Module):
    """What is trained together: the flow and the four scoring modules; all parameters have R rounds in front.

    Args:
        flow: ψ and its prototypes.
        m_g: the logit of S_g.
        m_r: weights of the residuals.
        r_logit: the logit of S_r.
        m_a: learned scores of patches.
        m_n: learned normality.
    """

    def __init__(
        self, flow: Flow, m_g: Logit, m_r: ResidualScore, r_logit: Logit, m_a: TopPositions, m_n: NormalityScore
    ) -> None:
        super().__init__()
        self.flow = flow
        self.m_g = m_g
        self.m_r = m_r
        self.r_logit = r_logit
        self.m_a = m_a
        self.m_n = m_n

    def of_round(self, number: int) -> Modules:
        """The modules of one round alone, R = 1."""
        one = copy.deepcopy(self)
        for module in one.modules():
            for name, value in module.named_parameters(recurse=False):
                module.register_parameter(name, nn.Parameter(value.detach()[[number]], requires_grad=False))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, nn.Buffer(buffer[[number]]))
        return one

    def image_squares(self, psi: Tensor) -> Tensor:
        """The printed input of M_r: squares of (ψ − μ_{c*}) / s, per dimension, (R, B, d)."""
        return self.flow.prototypes.residual(psi).square() / psi.shape[2]


def losses(modules: Modules, batch: Batch, forms: Forms, generator: torch.Generator) -> tuple[Losses, Tensor]:
    """The seven terms, and the mutual information of each round (R,); L_Ma is 0 without patches."""
    flow, label = modules.flow, batch.abnormal.float()
    psi = flow.psi(batch.x, batch.p)
    squared = flow.prototypes.squared_distances(psi)
    posterior = flow.prototypes.posterior(squared, forms.mim_sharpness / psi.shape[2])
    flow_n, flow_a = flow_losses(flow, batch, forms, generator)
    nll = flow.prototypes.nll(squared, psi.shape[2])
    squares = modules.image_squares(psi) if forms.residual else batch.squares
    deviation = torch.zeros_like(flow_n)
    if batch.v is not None:
        deviation = deviation_loss(modules.m_a.member_scores(batch.v), batch)
    terms = Losses(
        score_a=deviation,
        score_n=binary_loss(modules.m_n(batch.z), label if forms.normality_target else 1 - label, batch.weight),
        score_r=binary_loss(modules.r_logit(modules.m_r(squares)), label, batch.weight),
        score_g=binary_loss(nll if forms.likelihood else modules.m_g(nll / psi.shape[2]), label, batch.weight),
        flow_n=flow_n,
        flow_a=flow_a,
        mim=mim_loss(posterior, batch.normals, flow.prototypes.share, forms.mutual_information),
    )
    return terms, information(posterior.detach(), batch.normals).mutual


def total(terms: Losses, mim_weight: float) -> Tensor:
    """L of each round, (R,)."""
    *others, mim = terms
    return torch.stack(others).sum(0) + mim_weight * mim


def flow_losses(flow: Flow, batch: Batch, forms: Forms, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """L_flow^n = −E_n[log q] and L_flow^a = E_a[softplus(log q − E_n[log q] + margin)], per dimension, (R,) each."""
    with torch.no_grad():
        if forms.coupling:
            u = flow.independent_target(batch.x, generator)
        else:
            u = flow.coupled_target(batch.x, batch.p, generator)
        point = path_point(batch.x, u, generator, forms.velocity_target)
    log_q = flow.log_q(point, batch.p)
    of_normals = (batch.normals * log_q).sum(1)
    if forms.push:
        return -of_normals, (batch.anomalies * log_q).sum(1)
    pushed = softplus(log_q - of_normals.detach()[:, None] + forms.push_margin)
    return -of_normals, (batch.anomalies * pushed).sum(1)


def binary_loss(logit: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of logits (R, B) and targets (B,), counted by weight (R, B), (R,)."""
    return (weight * (softplus(logit) - target * logit)).sum(1)


def deviation_loss(scores: Tensor, batch: Batch) -> Tensor:
    """S → 0 for normals, S ≥ 5 for anomalies, by members (R, E, B), summed over the members, (R,)."""
    loss = torch.where(batch.abnormal, (MARGIN - scores).clamp_min(0), scores.abs())
    return (batch.weight[:, None] * loss).sum((1, 2))
