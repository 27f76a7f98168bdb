"""The flow function ψ: from feature space (t = 0) to the prototype space (t = 1) along the velocity field."""

from __future__ import annotations

from torch import Tensor

from mpfm_kedro.detectors.mpfm.modes import Start
from mpfm_kedro.detectors.mpfm.velocity import Velocity, VelocityMixture


def transport(velocity: VelocityMixture, z: Tensor, steps: int, start: Start | None = None) -> Tensor:
    """ψ(z): Euler steps along the mean velocity, differentiable, (B, d) → (B, d).

    Args:
        velocity: the field.
        z: features (B, d).
        steps: number of steps; with a closed-form start one is exact for points of one mode.
        start: the closed-form part of a single step, if it is known already. Training gives here what modes fitted
            without the sample make of it, so that normals are transported as new images would be.
    """
    if start is not None and steps == 1 and velocity.modes is not None:
        logit, mean = velocity.residual(z, z.new_zeros(len(z), 1))
        return start.psi + Velocity((logit + start.log_prob).log_softmax(1), mean).field
    for step in range(steps):
        t = z.new_full((len(z), 1), step / steps)
        z = z + velocity(z, t).field / steps
    return z
