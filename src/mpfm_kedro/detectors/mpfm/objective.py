"""One objective: L = L_Ma + L_Mn + L_Mr + L_Mg + L_flow^n + L_flow^a + λ L_mim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mpfm_kedro.detectors.mpfm.flow import path_point
from mpfm_kedro.detectors.mpfm.modules import Modules
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


def losses(modules: Modules, batch: Batch, generator: torch.Generator) -> tuple[Losses, Tensor]:
    """The seven terms, and the mutual information of each round (R,); L_Ma is 0 without patches."""
    flow, forms, label = modules.flow, modules.forms, batch.abnormal.float()
    psi = flow.psi(batch.x, batch.p)
    squared = flow.prototypes.squared_distances(psi)
    posterior = flow.prototypes.posterior(squared, forms.mim_sharpness / psi.shape[2])
    flow_n, flow_a = flow_losses(modules, batch, generator)
    deviation = torch.zeros_like(flow_n)
    if batch.v is not None:
        deviation = deviation_loss(modules.m_a.member_scores(batch.v), batch)
    terms = Losses(
        score_a=deviation,
        score_n=binary_loss(modules.m_n(batch.z), label if forms.normality_target else 1 - label, batch.weight),
        score_r=binary_loss(modules.score_r(psi, batch.squares), label, batch.weight),
        score_g=binary_loss(modules.score_g(squared), label, batch.weight),
        flow_n=flow_n,
        flow_a=flow_a,
        mim=mim_loss(posterior, batch.normals, flow.prototypes.share, forms.mutual_information),
    )
    return terms, information(posterior.detach(), batch.normals)


def total(terms: Losses, mim_weight: float) -> Tensor:
    """L of each round, (R,)."""
    *others, mim = terms
    return torch.stack(others).sum(0) + mim_weight * mim


def flow_losses(modules: Modules, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """L_flow^n = −E_n[log q] and L_flow^a = E_a[softplus(log q − E_n[log q] + margin)], per dimension, (R,) each."""
    flow, forms = modules.flow, modules.forms
    with torch.no_grad():
        if forms.coupling:
            u = flow.independent_target(batch.x, generator)
        else:
            u = flow.coupled_target(batch.x, batch.p, generator)
        point = path_point(batch.x, u, generator, forms.velocity_target)
    log_q = flow.log_q(point, batch.p)
    of_normals = (batch.normals * log_q).sum(1)
    pushed = log_q if forms.push else softplus(log_q - of_normals.detach()[:, None] + forms.push_margin)
    return -of_normals, (batch.anomalies * pushed).sum(1)


def binary_loss(logit: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of logits (R, B) and targets (B,), counted by weight (R, B), (R,)."""
    return (weight * (softplus(logit) - target * logit)).sum(1)


def deviation_loss(scores: Tensor, batch: Batch) -> Tensor:
    """S → 0 for normals, S ≥ 5 for anomalies, by members (R, E, B), summed over the members, (R,)."""
    loss = torch.where(batch.abnormal, (MARGIN - scores).clamp_min(0), scores.abs())
    return (batch.weight[:, None] * loss).sum((1, 2))
