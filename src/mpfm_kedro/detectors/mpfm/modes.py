"""Modes of the normals in feature space, and their closed-form transport into the prototype space.

The normals are Σ_j ω_j N(m_j, Σ_j). A mode is transported to its target mean τ_j in the prototype space by
``z_T = τ_j + A_j (z_0 − m_j)`` with ``A_j = s Σ_j^{-1/2}``, s = 1. On the straight path ``z_t = (1−t) z_0 + t z_T``
everything is diagonal in the eigenbasis of Σ_j, with ``g_j(t) = (1−t) + t a_j`` for the eigenvalue a_j of A_j.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


class PathPoint(NamedTuple):
    """The modes at B points of the path: log ω_j p_t(z_t | j) (B, J) and velocities v_j (B, J, d)."""

    log_prob: Tensor
    velocity: Tensor


class Path(NamedTuple):
    """The straight paths of B samples: z_T (B, d), and in each mode's basis what makes up z_t − (1−t) m_j − t τ_j.

    That is (1−t) U_jᵀ(z_0 − m_j) + t U_jᵀ(z_T − τ_j), both (B, J, r); computed once, they spare half of a step's work.
    """

    end: Tensor
    inside_start: Tensor
    inside_end: Tensor


class Start(NamedTuple):
    """The closed-form start of B samples: ψ_0(z) = Σ_j p(j|z) (τ_j + A_j (z − m_j)) (B, d), log ω_j N(z; …) (B, J)."""

    psi: Tensor
    log_prob: Tensor


class Modes(nn.Module):
    """J Gaussians with covariance ``Σ_j = U_j diag(λ_j) U_jᵀ + ρ_j (I − U_j U_jᵀ)``.

    Args:
        weight: ω (J,).
        mean: m (J, d).
        basis: U (J, d, r), orthonormal columns; columns of zeros fill up modes of lower rank.
        variance: λ (J, r), equal to ρ_j where the basis is filled up.
        residual_variance: ρ (J,), the variance outside the basis.
        target_mean: τ (J, d), where the modes' means go.
    """

    weight: Tensor
    mean: Tensor
    basis: Tensor
    variance: Tensor
    residual_variance: Tensor
    target_mean: Tensor

    def __init__(
        self,
        weight: Tensor,
        mean: Tensor,
        basis: Tensor,
        variance: Tensor,
        residual_variance: Tensor,
        target_mean: Tensor,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight.float())
        self.register_buffer("mean", mean.float())
        self.register_buffer("basis", basis.float())
        self.register_buffer("variance", variance.float())
        self.register_buffer("residual_variance", residual_variance.float())
        self.register_buffer("target_mean", target_mean.float())

    @property
    def n_modes(self) -> int:
        """J."""
        return len(self.weight)

    @property
    def log_det(self) -> Tensor:
        """Log |det A_j| = −½ log |Σ_j|, (J,)."""
        inside = (self.variance.log() - self.residual_variance.log()[:, None]).sum(1)
        return -0.5 * (inside + self.mean.shape[1] * self.residual_variance.log())

    def log_prob(self, z: Tensor) -> Tensor:
        """Log ω_j N(z; m_j, Σ_j): (B, d) → (B, J)."""
        offset = z[:, None] - self.mean
        one = z.new_ones(())
        return self._log_prob(offset, torch.einsum("bjd,jdr->bjr", offset, self.basis), one, one.expand(len(z), 1))

    def path(self, z: Tensor, end: Tensor) -> Path:
        """The straight paths from z (B, d) to their ends (B, d)."""
        offsets = z[:, None] - self.mean, end[:, None] - self.target_mean
        return Path(end, *(torch.einsum("bjd,jdr->bjr", offset, self.basis) for offset in offsets))

    def at(self, z_t: Tensor, t: Tensor, path: Path | None = None) -> PathPoint:
        """The modes at points z_t (B, d) of time t (B, 1) of the straight path, which may be given.

        There z_t − (1−t) m_j − t τ_j has covariance g_j(t)² Σ_j, and the velocity of mode j is
        v_j(z_t, t) = τ_j − m_j + (A_j − I) g_j(t)^{-1} (z_t − (1−t) m_j − t τ_j),
        exact in one Euler step of any length for points of mode j.
        """
        time = t[:, None]
        offset = z_t[:, None] - (1 - time) * self.mean - time * self.target_mean
        if path is None:
            inside = torch.einsum("bjd,jdr->bjr", offset, self.basis)
        else:
            inside = (1 - time) * path.inside_start + time * path.inside_end
        a_in, a_out = self.variance.rsqrt(), self.residual_variance.rsqrt()
        g_in, g_out = (1 - time) + time * a_in, (1 - t) + t * a_out
        return PathPoint(self._log_prob(offset, inside, g_in, g_out), self._velocity(offset, inside, g_in, g_out))

    def _log_prob(self, offset: Tensor, inside: Tensor, g_in: Tensor, g_out: Tensor) -> Tensor:
        d = offset.shape[2]
        variance_in, variance_out = self.variance * g_in.square(), self.residual_variance * g_out.square()
        energy = inside.square()
        outside = (offset.square().sum(2) - energy.sum(2)).clamp_min(0)
        quadratic = (energy / variance_in).sum(2) + outside / variance_out
        volume = (variance_in.log() - variance_out.log()[..., None]).sum(2) + d * variance_out.log()
        return self.weight.log() - 0.5 * (quadratic + volume + d * math.log(2 * math.pi))

    def _velocity(self, offset: Tensor, inside: Tensor, g_in: Tensor, g_out: Tensor) -> Tensor:
        rate_out = (self.residual_variance.rsqrt() - 1) / g_out
        rate_in = (self.variance.rsqrt() - 1) / g_in - rate_out[..., None]
        inside_basis = torch.einsum("bjr,jdr->bjd", rate_in * inside, self.basis)
        return self.target_mean - self.mean + rate_out[..., None] * offset + inside_basis

    def posterior(self, z: Tensor) -> Tensor:
        """p(j | z): (B, d) → (B, J)."""
        return self.log_prob(z).softmax(1)

    def start(self, z: Tensor) -> Start:
        """ψ_0(z) and the modes' log ω_j N(z; m_j, Σ_j), (B, d) → (B, d), (B, J)."""
        log_prob, velocity = self.at(z, z.new_zeros(len(z), 1))
        return Start(z + torch.einsum("bj,bjd->bd", log_prob.softmax(1), velocity), log_prob)

    def endpoint(self, z: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """z_T = τ_j + A_j (z − m_j) with the mode drawn from p(j|z), (B, d) → (B, d)."""
        log_prob, velocity = self.at(z, z.new_zeros(len(z), 1))
        mode = torch.multinomial(log_prob.softmax(1).cpu(), 1, generator=generator).to(z.device)
        return z + velocity.gather(1, mode[..., None].expand(-1, -1, z.shape[1])).squeeze(1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw features of normals from Σ_j ω_j N(m_j, Σ_j): (n, d). The closed-form flow, backwards."""
        mode = torch.multinomial(self.weight.cpu(), n, replacement=True, generator=generator).to(self.mean.device)
        noise = torch.randn(n, self.mean.shape[1], generator=generator).to(self.mean.device)
        sample = torch.empty_like(noise)
        for j, (mean, basis, variance) in enumerate(zip(self.mean, self.basis, self.variance, strict=True)):
            own, level = noise[mode == j], self.residual_variance[j].sqrt()
            sample[mode == j] = mean + level * own + (own @ basis * (variance.sqrt() - level)) @ basis.T
        return sample
