"""The trained flow: closed-form transport of the modes plus a learned residual, into a space of K prototypes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.closed_form import ROWS_AT_ONCE
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.modes import Modes, Start
from mpfm_kedro.detectors.mpfm.transport import transport
from mpfm_kedro.detectors.mpfm.velocity import VelocityMixture

FLOW_OPTIONS = ("hidden", "transport_steps", "printed_start", "precision")
SOFTPLUS_IS_ONE = math.log(math.e - 1)


class GlobalScore(nn.Module):
    """M_g: S_g = softplus(α) · (NLL/d − centre) / spread + β; θ_g = (α, β).

    The raw NLL is of order d and would saturate a binary loss; per dimension and standardised it does not.
    """

    center: Tensor
    spread: Tensor

    def __init__(self, center: float, spread: float) -> None:
        super().__init__()
        self.register_buffer("center", torch.tensor(center))
        self.register_buffer("spread", torch.tensor(max(spread, 1e-6)))
        self.slope = nn.Parameter(torch.tensor(SOFTPLUS_IS_ONE))
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, nll_per_dimension: Tensor) -> Tensor:
        """(B,) → (B,), in the same order."""
        standardised = (nll_per_dimension - self.center) / self.spread
        return nn.functional.softplus(self.slope) * standardised + self.offset


class Flow(nn.Module):
    """ψ, the prototypes P_GM and M_g.

    Args:
        modes: of the normals; they start the flow unless ``printed_start``.
        prototypes: P_GM, initialised by K-means++ on ψ_0 of the training normals.
        center: centre of NLL/d of the training normals.
        spread: its spread.
        hidden: width of the velocity network.
        transport_steps: Euler steps of ψ.
        printed_start: no closed-form start; the network makes all K components of the velocity.
        precision: of the velocity network, fp32 or bf16; all else is fp32.
    """

    def __init__(
        self,
        modes: Modes,
        prototypes: PrototypeMixture,
        center: float,
        spread: float,
        hidden: int,
        transport_steps: int,
        printed_start: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.modes = modes
        self.prototypes = prototypes
        d, components = prototypes.mean.shape[1], len(prototypes.mean)
        self.velocity = VelocityMixture(d, components, hidden, None if printed_start else modes, precision)
        self.transport_steps = transport_steps
        self.global_score = GlobalScore(center, spread)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.modes.mean.device

    def psi(self, z: Tensor, start: Start | None = None) -> Tensor:
        """ψ(z), the image of z in the prototype space: (B, d) → (B, d)."""
        return transport(self.velocity, z, self.transport_steps, start)

    def nll(self, psi: Tensor) -> Tensor:
        """−log p / d of features transported to ψ, (B, d) → (B,)."""
        return -self.prototypes.log_prob(psi) / psi.shape[1]

    @torch.inference_mode()
    def score(self, z: np.ndarray, start: Start | None = None) -> np.ndarray:
        """S_g of z (n, d), with their closed-form start if it is given, (n,)."""
        found = [np.empty(0)]
        for first in range(0, len(z), ROWS_AT_ONCE):
            own = slice(first, first + ROWS_AT_ONCE)
            of_own = None if start is None else Start(*(part[own].to(self.device) for part in start))
            psi = self.psi(torch.from_numpy(z[own]).float().to(self.device), of_own)
            found.append(self.global_score(self.nll(psi)).cpu().double().numpy())
        return np.concatenate(found)


def load_flow(artefact: Artefact, modes: Modes) -> Flow:
    """The flow of an artefact, on the device of the modes."""
    tensors = artefact.part("flow")
    own = {name: tensors[f"prototypes.{name}"] for name in ("mean", "logit", "scale", "log_volume")}
    prototypes = PrototypeMixture(own["mean"], own["logit"].exp(), own["scale"], own["log_volume"])
    flow = Flow(modes, prototypes, 0.0, 1.0, **{name: artefact.details[name] for name in FLOW_OPTIONS})
    missing, unexpected = flow.load_state_dict(tensors, strict=False)
    if unexpected or any("modes." not in name for name in missing):
        raise ValueError(f"the trained flow does not fit: missing {missing}, unexpected {unexpected}")
    return flow.to(modes.mean.device)
