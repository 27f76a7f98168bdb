"""The Gaussian-mixture prototype space P_GM = Σ_k π_k N(μ_k, s² I)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PrototypeMixture(nn.Module):
    """K isotropic prototypes; μ and π are learned, s stays as initialised.

    Args:
        mean: μ (K, d).
        weight: π (K,).
        scale: s, shared by all prototypes.
        log_volume: (K,), log |det A_j| of the mode that prototype k belongs to. With it the mixture gives
            densities of feature space, and with a zero residual ranks images as the mixture of modes does.
    """

    log_volume: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, weight: Tensor, scale: float | Tensor, log_volume: Tensor | None = None) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean.float().clone())
        self.logit = nn.Parameter(weight.float().log())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("log_volume", torch.zeros(len(mean)) if log_volume is None else log_volume.float())

    @property
    def weight(self) -> Tensor:
        """π (K,)."""
        return self.logit.softmax(0)

    def log_density(self, x: Tensor) -> Tensor:
        """log N(x; μ_k, s² I): (B, d) → (B, K)."""
        squared = x.square().sum(1, keepdim=True) - 2 * x @ self.mean.T + self.mean.square().sum(1)
        constant = x.shape[1] * (self.scale.log() + 0.5 * math.log(2 * math.pi))
        return -0.5 * squared.clamp_min(0) / self.scale.square() - constant

    def components(self, x: Tensor) -> Tensor:
        """log π_k N(x; μ_k, s² I): (B, d) → (B, K)."""
        return self.logit.log_softmax(0) + self.log_density(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """log Σ_k π_k N(x; μ_k, s² I) |det A_k|: the density of the feature transported to x, (B, d) → (B,)."""
        return (self.components(x) + self.log_volume).logsumexp(1)

    def posterior(self, x: Tensor, sharpness: float | None = None) -> Tensor:
        """p(c=k | x), (B, d) → (B, K).

        In high dimension posteriors are one-hot and carry no gradient. With ``sharpness`` b the log-likelihood
        counts per dimension, times b: p ∝ π_k N(x; μ_k, s² I)^{b/d}.
        """
        power = 1.0 if sharpness is None else sharpness / x.shape[1]
        return (self.logit.log_softmax(0) + power * self.log_density(x)).softmax(1)

    def deviation(self, x: Tensor) -> Tensor:
        """(x − μ_{c*}) / s with c* the most probable prototype, which gets no gradient from it: (B, d) → (B, d)."""
        return (x - self.mean.detach()[self.log_density(x).argmax(1)]) / self.scale

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw z_T ~ P_GM, (n, d)."""
        device = self.mean.device
        component = torch.multinomial(self.weight.detach().cpu(), n, replacement=True, generator=generator)
        noise = torch.randn(n, self.mean.shape[1], generator=generator).to(device)
        return self.mean.detach()[component.to(device)] + self.scale * noise
