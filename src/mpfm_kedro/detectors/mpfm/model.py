"""The whole model: modes, velocity mixture, prototypes and the four heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.heads import GlobalScore, LinearScore, LocalEvidence, LocalScore, Parts
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.modes import Modes, Start
from mpfm_kedro.detectors.mpfm.transport import transport
from mpfm_kedro.detectors.mpfm.velocity import VelocityMixture


class MPFM(nn.Module):
    """Mixture Prototype Flow Matching on features of a frozen backbone.

    Args:
        pooled_center: centre of the pooled statistics of training normals, (d,).
        pooled_spread: their spread; both turn stored features into z.
        modes: modes of the normals (they decide calibration; they start the flow unless ``printed_start``).
        prototypes: P_GM, initialised by K-means++ on ψ_0 of the training normals.
        local_score: M_a with its closed-form start.
        global_center: centre of NLL/d of the training normals.
        global_spread: its spread.
        hidden: width of the velocity network.
        transport_steps: Euler steps of ψ.
        printed_start: no closed-form start; the network makes all K components of the velocity.
        precision: of the velocity network, fp32 or bf16; all else is fp32.
    """

    pooled_center: Tensor
    pooled_spread: Tensor

    def __init__(
        self,
        pooled_center: Tensor,
        pooled_spread: Tensor,
        modes: Modes,
        prototypes: PrototypeMixture,
        local_score: LocalScore,
        global_center: float,
        global_spread: float,
        hidden: int,
        transport_steps: int,
        printed_start: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.register_buffer("pooled_center", pooled_center.float())
        self.register_buffer("pooled_spread", pooled_spread.float())
        d = len(pooled_center)
        self.modes = modes
        self.prototypes = prototypes
        start = None if printed_start else modes
        self.velocity = VelocityMixture(d, len(prototypes.mean), hidden, start, precision)
        self.transport_steps = transport_steps
        self.global_score = GlobalScore(global_center, global_spread)
        self.local_score = local_score
        self.normality_score = LinearScore(d)
        self.residual_score = LinearScore(d)

    def z(self, pooled: Tensor) -> Tensor:
        """Standardised pooled statistics, (B, d) → (B, d)."""
        return (pooled - self.pooled_center) / self.pooled_spread

    def psi(self, z: Tensor, start: Start | None = None) -> Tensor:
        """ψ(z), the image of z in the prototype space: (B, d) → (B, d)."""
        return transport(self.velocity, z, self.transport_steps, start)

    def nll(self, psi: Tensor) -> Tensor:
        """−log p / d of features transported to ψ, (B, d) → (B,)."""
        return -self.prototypes.log_prob(psi) / psi.shape[1]

    def head_weights(self) -> list[Tensor]:
        """Weights of the linear heads M_a, M_r and M_n."""
        return [self.local_score.weight, self.residual_score.linear.weight, self.normality_score.linear.weight]

    def parts(self, z: Tensor, psi: Tensor, maps: Tensor | None, evidence: LocalEvidence | None) -> Parts:
        """The four scores from z (B, d), ψ(z) (B, d) and the local evidence, or the maps F where there is none."""
        return Parts(
            g=self.global_score(self.nll(psi)),
            a=self.local_score(maps, evidence),
            r=self.residual_score(self.prototypes.deviation(psi)),
            n=self.normality_score(z),
        )

    @torch.inference_mode()
    def score(self, pooled: Tensor, maps: Tensor) -> tuple[Parts, Tensor]:
        """Scores and most probable mode (B,) of new images, from stored features."""
        z = self.z(pooled.float())
        start = self.modes.start(z)
        mode = start.log_prob.argmax(1)
        return self.parts(z, self.psi(z, start), maps, self.local_score.evidence(maps, mode)), mode
