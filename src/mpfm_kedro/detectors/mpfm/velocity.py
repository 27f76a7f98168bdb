"""The velocity mixture q_θ(u | z_t) = Σ_k π_k(z_t, t) N(u; μ_k(z_t, t), s_u² I)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.modes import Modes, Path

TIME_FREQUENCIES = 8


class Velocity(NamedTuple):
    """The mixture at B points: log weights (B, C) and component means (B, C, d)."""

    log_weight: Tensor
    mean: Tensor

    @property
    def field(self) -> Tensor:
        """The mean velocity Σ_k π_k μ_k, (B, d)."""
        return torch.einsum("bc,bcd->bd", self.log_weight.exp(), self.mean)

    def log_prob(self, u: Tensor, scale: float) -> Tensor:
        """Log q(u): (B, d) → (B,)."""
        squared = (u[:, None] - self.mean).square().sum(2)
        constant = u.shape[1] * (math.log(scale) + 0.5 * math.log(2 * math.pi))
        return (self.log_weight - 0.5 * squared / scale**2 - constant).logsumexp(1)


class VelocityMixture(nn.Module):
    """A closed-form start plus a learned residual that is zero at the start.

    With modes there is one component per mode: mean v_j + residual_j, weight p(j | z_t) times a learned factor.
    Without (the printed form) all of the C components come from the network.

    Args:
        d: size of z.
        components: C; ignored with modes.
        hidden: width of the network.
        modes: the closed-form start, or None.
        precision: fp32, or bf16 to multiply matrices of the network in half the width. Only the network: likelihoods
            are sums over d (2304) squares, in which the three digits of bf16 would drown what distinguishes images.
    """

    def __init__(self, d: int, components: int, hidden: int, modes: Modes | None, precision: str = "fp32") -> None:
        super().__init__()
        self.precision = precision
        self.modes = modes
        self.components = modes.n_modes if modes is not None else components
        self.d = d
        self.read = nn.Linear(d, hidden)
        self.time = nn.Linear(2 * TIME_FREQUENCIES, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, self.components * d)
        self.logit = nn.Linear(hidden, self.components)
        for layer in (self.mean, self.logit):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def residual(self, z_t: Tensor, t: Tensor) -> Velocity:
        """What the network adds to logits (B, C) and means (B, C, d), in the precision of z_t."""
        with torch.autocast(z_t.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            hidden = nn.functional.silu(self.read(z_t) + self.time(time_features(t)))
            hidden = nn.functional.silu(self.mix(hidden))
            logit, mean = self.logit(hidden), self.mean(hidden)
        return Velocity(logit.to(z_t.dtype), mean.to(z_t.dtype).view(-1, self.components, self.d))

    def forward(self, z_t: Tensor, t: Tensor, path: Path | None = None) -> Velocity:
        """q_θ(u | z_t) at z_t (B, d) and t (B, 1), on a path that may be given."""
        logit, mean = self.residual(z_t, t)
        if self.modes is not None:
            start = self.modes.at(z_t, t, path)
            logit, mean = logit + start.log_prob, mean + start.velocity
        return Velocity(logit.log_softmax(1), mean)


def time_features(t: Tensor) -> Tensor:
    """Sin and cos of π 2^i t: (B, 1) → (B, 2 · TIME_FREQUENCIES)."""
    angle = math.pi * t * 2.0 ** torch.arange(TIME_FREQUENCIES, device=t.device)
    return torch.cat([angle.sin(), angle.cos()], dim=1)
