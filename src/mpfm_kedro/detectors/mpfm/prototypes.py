"""The Gaussian-mixture prototype space P_GM = Σ_k π_k N(μ_k, s² I)."""

import math

import torch
from torch import Tensor

from mpfm_kedro.detectors.mpfm.tensors import TensorModule, squared_distances


class PrototypeMixture(TensorModule):
    """K isotropic prototypes; μ and π are learned, s stays as initialised."""

    learned = frozenset({"mean", "logit"})
    mean: Tensor  # μ (R, K, d)
    logit: Tensor  # log π (R, K)
    scale: Tensor  # s (R,), shared by all prototypes

    @property
    def share(self) -> Tensor:
        """π (R, K)."""
        return self.logit.softmax(1)

    def squared_distances(self, x: Tensor) -> Tensor:
        """‖x − μ_k‖² / s²: (R, B, d) → (R, B, K)."""
        return squared_distances(x, self.mean) / self.scale.square()[:, None, None]

    def nll(self, squared: Tensor) -> Tensor:
        """−log Σ_k π_k N(x; μ_k, s² I) from squared distances (R, B, K), (R, B)."""
        constant = self.mean.shape[2] * (self.scale.log() + 0.5 * math.log(2 * math.pi))
        return constant[:, None] - (self.logit.log_softmax(1)[:, None] - 0.5 * squared).logsumexp(2)

    def posterior(self, squared: Tensor, power: float = 1.0) -> Tensor:
        """p(c = k | x) ∝ π_k N(x; μ_k, s² I)^power from squared distances, (R, B, K) → (R, B, K).

        In high dimension posteriors are one-hot and carry no gradient: a power of b / d lets the log-likelihood count
        per dimension, times b.
        """
        return (self.logit.log_softmax(1)[:, None] - 0.5 * power * squared).softmax(2)

    def residual(self, x: Tensor) -> Tensor:
        """(x − μ_{c*}) / s with c* = argmax_c N(x; μ_c, s² I), the nearest prototype: (R, B, d) → (R, B, d)."""
        nearest = self.squared_distances(x).argmin(2)
        mean = self.mean.gather(1, nearest[..., None].expand(-1, -1, x.shape[2]))
        return (x - mean) / self.scale[:, None, None]

    def sample(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw x_T ~ P_GM: components (R, n) and points (R, n, d)."""
        component = torch.multinomial(self.share.detach().cpu(), n, replacement=True, generator=generator)
        component = component.to(self.mean.device)
        noise = torch.randn(*component.shape, self.mean.shape[2], generator=generator).to(self.mean.device)
        mean = self.mean.detach().take_along_dim(component[..., None], 1)
        return component, mean + self.scale[:, None, None] * noise
