"""The flow ψ from feature space (t = 0) to the prototype space (t = 1), and the path of flow matching."""

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, NetworkVelocity


class Flow(nn.Module):
    """ψ, by Euler steps along the mean velocity (one is exact at the start), and the prototypes P_GM."""

    def __init__(
        self, velocity: CoupledVelocity | NetworkVelocity, prototypes: PrototypeMixture, steps: int = 1
    ) -> None:
        super().__init__()
        self.velocity = velocity
        self.prototypes = prototypes
        self.steps = steps

    def psi(self, x: Tensor, p: Tensor) -> Tensor:
        """ψ(x), differentiable: (R, B, d) and group weights (R, B, K) → (R, B, d)."""
        for step in range(self.steps):
            t = x.new_full((*x.shape[:2], 1), step / self.steps)
            x = x + self.velocity.field(x, t, p) / self.steps
        return x

    def score(self, psi: Tensor) -> Tensor:
        """S_g = −log Σ_k π_k N(ψ; μ_k, s² I) / d, (R, B, d) → (R, B)."""
        return self.prototypes.nll(self.prototypes.squared_distances(psi)) / psi.shape[2]

    def target(self, x: Tensor, p: Tensor, generator: torch.Generator, independent: bool = False) -> Tensor:
        """u = x_T − x with x_T = m_c + a_c (x − m_c) and the group c drawn from p: (R, B, d), (R, B, K) → (R, B, d).

        In the printed form x_T ~ P_GM is independent of x.
        """
        if independent:
            return self.prototypes.sample(x.shape[1], generator)[1] - x
        assert isinstance(self.velocity, CoupledVelocity)
        group = torch.multinomial(p.flatten(0, 1).cpu(), 1, generator=generator).view(p.shape[:2]).to(x.device)
        number = torch.arange(len(x), device=x.device)[:, None]
        return (self.velocity.gain[number, group] - 1)[..., None] * (x - self.velocity.center[number, group])


def path_point(
    x: Tensor, u: Tensor, generator: torch.Generator, divided: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """x_t = (1 − t) x_0 + t x_T (R, B, d), t (R, B, 1) and its target u; times are random, the same in every round.

    Args:
        x: x_0 (R, B, d).
        u: x_T − x_0 (R, B, d).
        generator: of the times.
        divided: the printed target u = (x_T − x_0) / t, which explodes at t → 0.
    """
    t = torch.rand(x.shape[1], 1, generator=generator).to(x.device).expand(len(x), -1, -1)
    return x + t * u, t, u / t.clamp_min(1e-3) if divided else u
