"""The objective of the flow: L = L_Mg + L_flow^n + L_flow^a + λ L_mim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from mpfm_kedro.detectors.mpfm.flow import Flow
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
        label: 0 normal, 1 known anomaly, 2 pseudo-anomaly; the binary loss counts everything but 0 as 1 (B,).
    """

    z: Tensor
    start: Start | None
    path: Path | None
    label: Tensor


@dataclass(frozen=True)
class Options:
    """Weights of the objective, and whether the printed form of mutual information is used.

    ``pseudo_weight`` is that of pseudo-anomalies in the binary loss; known anomalies and normals weigh 1.
    """

    mim_weight: float
    mim_sharpness: float
    push_margin: float
    pseudo_weight: float = 1.0
    printed_mutual_information: bool = False


class Losses(NamedTuple):
    """All terms, each a scalar."""

    flow_normal: Tensor
    flow_anomaly: Tensor
    mim: Tensor
    score_g: Tensor

    def total(self, options: Options) -> Tensor:
        """L."""
        return self.score_g + self.flow_normal + self.flow_anomaly + options.mim_weight * self.mim


def losses(flow: Flow, batch: Batch, options: Options, generator: torch.Generator) -> tuple[Losses, Information]:
    """Every term on one batch, and the mutual information of its normals."""
    y = (batch.label != 0).float()
    normal = y == 0
    psi = flow.psi(batch.z, batch.start)
    flow_normal, flow_anomaly = flow_losses(flow, batch, normal, options, generator)
    posterior = flow.prototypes.posterior(psi[normal], options.mim_sharpness)
    weight = torch.where(batch.label == PSEUDO, options.pseudo_weight, 1.0)
    terms = Losses(
        flow_normal=flow_normal,
        flow_anomaly=flow_anomaly,
        mim=mim_loss(posterior, flow.prototypes.weight, options.printed_mutual_information),
        score_g=binary_cross_entropy_with_logits(flow.global_score(flow.nll(psi)), y, weight),
    )
    return terms, information(posterior.detach())


def flow_losses(
    flow: Flow, batch: Batch, normal: Tensor, options: Options, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """L_flow^n = −E log q(u | z_t) / d on normals, and the bounded push of anomalies.

    u = z_T − z_0 on the straight path z_t = (1−t) z_0 + t z_T, t uniform. The push is
    softplus(log q_a / d − mean log q_n / d + margin): it fades once anomalies are unlikely enough.
    """
    z_0 = batch.z
    z_end = flow.prototypes.sample(len(z_0), generator) if batch.path is None else batch.path.end
    t = torch.rand(len(z_0), 1, generator=generator).to(z_0.device)
    q = flow.velocity((1 - t) * z_0 + t * z_end, t, batch.path)
    log_prob = q.log_prob(z_end - z_0, VELOCITY_SCALE) / z_0.shape[1]
    of_normals = log_prob[normal].mean()
    if normal.all():
        return -of_normals, log_prob.new_zeros(())
    margin = log_prob[~normal] - of_normals.detach() + options.push_margin
    return -of_normals, softplus(margin).mean()
