"""The objective: L = L_Ma + L_Mn + L_Mr + L_Mg + L_flow^n + L_flow^a + λ L_mim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from mpfm_kedro.detectors.mpfm.heads import LocalEvidence
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.modes import Path, Start
from mpfm_kedro.detectors.mpfm.mutual_information import Information, information, mim_loss

NORMAL, KNOWN, PSEUDO = 0.0, 1.0, 2.0
VELOCITY_SCALE = 1.0  # s_u


@dataclass(frozen=True)
class Batch:
    """One step's samples, normals first.

    Args:
        z: standardised features (B, d).
        start: the closed-form start by modes fitted without the sample, or None to compute it.
        path: to z_T, coupled to z inside its mode, or None to draw z_T from the prototypes (printed).
        maps: stored F (B, C, H', W'), needed only without patch groups.
        evidence: what M_a reads of the maps, or None without patch groups.
        label: 0 normal, 1 known anomaly, 2 pseudo-anomaly; the binary losses count everything but 0 as 1 (B,).
    """

    z: Tensor
    start: Start | None
    path: Path | None
    maps: Tensor | None
    evidence: LocalEvidence | None
    label: Tensor


@dataclass(frozen=True)
class Options:
    """Weights of the objective, and which of the named repairs are off (printed).

    ``pseudo_weight`` is that of pseudo-anomalies in the binary losses; known anomalies and normals weigh 1. Only the
    named ``scores`` are trained.
    """

    mim_weight: float
    mim_sharpness: float
    push_margin: float
    head_penalty: float
    pseudo_weight: float = 1.0
    printed_mutual_information: bool = False
    printed_normality_target: bool = False
    scores: str = "garn"


class Losses(NamedTuple):
    """All terms, each a scalar."""

    flow_normal: Tensor
    flow_anomaly: Tensor
    mim: Tensor
    score_g: Tensor
    score_a: Tensor
    score_r: Tensor
    score_n: Tensor
    penalty: Tensor

    def total(self, options: Options) -> Tensor:
        """L, with a ridge penalty on the linear heads."""
        flow = self.flow_normal + self.flow_anomaly
        of_score = {"g": self.score_g, "a": self.score_a, "r": self.score_r, "n": self.score_n}
        score = torch.stack([of_score[name] for name in options.scores]).sum()
        return score + flow + options.mim_weight * self.mim + options.head_penalty * self.penalty


def losses(model: MPFM, batch: Batch, options: Options, generator: torch.Generator) -> tuple[Losses, Information]:
    """Every term on one batch, and the mutual information of its normals."""
    y = (batch.label != 0).float()
    normal = y == 0
    psi = model.psi(batch.z, batch.start)
    flow_normal, flow_anomaly = flow_losses(model, batch, normal, options, generator)
    posterior = model.prototypes.posterior(psi[normal], options.mim_sharpness)
    parts = model.parts(batch.z, psi, batch.maps, batch.evidence)
    weight = torch.where(batch.label == PSEUDO, options.pseudo_weight, 1.0)
    normality_target = y if options.printed_normality_target else 1 - y
    terms = Losses(
        flow_normal=flow_normal,
        flow_anomaly=flow_anomaly,
        mim=mim_loss(posterior, model.prototypes.weight, options.printed_mutual_information),
        score_g=binary_cross_entropy_with_logits(parts.g, y, weight),
        score_a=binary_cross_entropy_with_logits(parts.a, y, weight),
        score_r=binary_cross_entropy_with_logits(parts.r, y, weight),
        score_n=binary_cross_entropy_with_logits(parts.n, normality_target, weight),
        penalty=0.5 * sum((head.square().sum() for head in model.head_weights()), start=y.new_zeros(())),
    )
    return terms, information(posterior.detach())


def flow_losses(
    model: MPFM, batch: Batch, normal: Tensor, options: Options, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """L_flow^n = −E log q(u | z_t) / d on normals, and the bounded push of anomalies.

    u = z_T − z_0 on the straight path z_t = (1−t) z_0 + t z_T, t uniform. The push is
    softplus(log q_a / d − mean log q_n / d + margin): it fades once anomalies are unlikely enough.
    """
    z_0 = batch.z
    z_end = model.prototypes.sample(len(z_0), generator) if batch.path is None else batch.path.end
    t = torch.rand(len(z_0), 1, generator=generator).to(z_0.device)
    q = model.velocity((1 - t) * z_0 + t * z_end, t, batch.path)
    log_prob = q.log_prob(z_end - z_0, VELOCITY_SCALE) / z_0.shape[1]
    of_normals = log_prob[normal].mean()
    if normal.all():
        return -of_normals, log_prob.new_zeros(())
    margin = log_prob[~normal] - of_normals.detach() + options.push_margin
    return -of_normals, softplus(margin).mean()
