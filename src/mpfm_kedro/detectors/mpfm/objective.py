"""One objective: L = L_Ma + L_Mn + L_Mr + L_Mg + L_flow^n + L_flow^a + λ L_mim.

L_mim is the regularisation by the mutual information between a normal's image ψ and its prototype c (MIMR).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mpfm_kedro.detectors.mpfm.flow import path_point
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.parameters import TrainingParameters

MARGIN = 5.0  # how far S_a of anomalies shall deviate, in units of the prior N(0, 1) of normals' scores


class Batch(NamedTuple):
    """One step's images, normals first, as each of R rounds sees them."""

    x: Tensor  # whitened features (R, B, d), normals by the closed form without their fold
    p: Tensor  # group weights (R, B, K)
    squares: Tensor  # of the residuals of patches by channel (R, B, C)
    z: Tensor  # standardised features (B, d)
    v: Tensor | None  # standardised patches (B, X, C); None where M_a does not take part
    abnormal: Tensor  # (B,), bool
    # What each image counts in each round (R, B); normals and anomalies sum up to 1 each, what a round leaves out is 0.
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

    def total(self, mim_weight: float) -> Tensor:
        """L of each round, (R,)."""
        *others, mim = self
        return torch.stack(others).sum(0) + mim_weight * mim


def losses(
    modules: Modules, batch: Batch, parameters: TrainingParameters, generator: torch.Generator
) -> tuple[Losses, Tensor]:
    """The seven terms, and the mutual information of each round (R,); L_Ma is 0 without patches."""
    flow, printed, label = modules.flow, modules.printed, batch.abnormal.float()
    psi = flow.psi(batch.x, batch.p)
    squared = flow.prototypes.squared_distances(psi)
    tempered = 1.0 if "mutual_information" in printed else parameters.mim_sharpness / psi.shape[2]
    posterior = flow.prototypes.posterior(squared, tempered)
    flow_n, flow_a = flow_losses(modules, batch, parameters.push_margin, generator)
    deviation = torch.zeros_like(flow_n)
    if batch.v is not None:  # S_a → 0 for normals, S_a ≥ 5 for anomalies, summed over the members (R, E, B)
        scores = modules.m_a.member_scores(batch.v)
        deviation = torch.where(batch.abnormal, (MARGIN - scores).clamp_min(0), scores.abs())
        deviation = (batch.weight[:, None] * deviation).sum((1, 2))
    of_normality = label if "normality_target" in printed else 1 - label
    terms = Losses(
        score_a=deviation,
        score_n=binary_loss(modules.m_n(batch.z), of_normality, batch.weight),
        score_r=binary_loss(modules.score_r(psi, batch.squares), label, batch.weight),
        score_g=binary_loss(modules.score_g(squared), label, batch.weight),
        flow_n=flow_n,
        flow_a=flow_a,
        mim=mim_loss(posterior, batch.normals, flow.prototypes.share, "mutual_information" in printed),
    )
    return terms, information(posterior.detach(), batch.normals)


def flow_losses(modules: Modules, batch: Batch, margin: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """L_flow^n = −E_n[log q] and L_flow^a = E_a[softplus(log q − E_n[log q] + margin)], per dimension, (R,) each."""
    flow, printed = modules.flow, modules.printed
    with torch.no_grad():
        u = flow.target(batch.x, batch.p, generator, independent="coupling" in printed)
        x_t, t, u = path_point(batch.x, u, generator, divided="velocity_target" in printed)
    log_q = flow.velocity.log_prob(u, x_t, t, batch.p) / u.shape[2]
    of_normals = (batch.normals * log_q).sum(1)
    pushed = log_q if "push" in printed else softplus(log_q - of_normals.detach()[:, None] + margin)
    return -of_normals, (batch.anomalies * pushed).sum(1)


def binary_loss(logit: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of logits (R, B) and targets (B,), counted by weight (R, B), (R,)."""
    return (weight * (softplus(logit) - target * logit)).sum(1)


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p over the last axis."""
    return -(p * p.clamp_min(1e-12).log()).sum(-1)


def information(posterior: Tensor, weight: Tensor) -> Tensor:
    """I(ψ; c) = H(c) − H(c|ψ) in nats, (R,), of assignments p(c|ψ) (R, B, K) and their weights (R, B), which sum to 1.

    H(c) is that of the batch marginal, which has a gradient.
    """
    return entropy((weight[..., None] * posterior).sum(1)) - (weight * entropy(posterior)).sum(1)


def mim_loss(posterior: Tensor, weight: Tensor, share: Tensor, printed: bool = False) -> Tensor:
    """L_mim = H(c|ψ) − H(c) from p(c|ψ) of normals (R, B, K), their weights (R, B) and π (R, K): (R,).

    Its minimum is the maximum of the mutual information. The printed form, E[Σ p log p] − Σ π log π, is the mutual
    information itself with its sign the wrong way: minimising it spreads the assignments and starves prototypes.
    """
    if printed:
        return entropy(share) - (weight * entropy(posterior)).sum(1)
    return -information(posterior, weight)
