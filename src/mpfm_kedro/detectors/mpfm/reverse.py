"""Endpoint posterior and reverse chain: from the prototype space back to normal features.

Linear schedule α_t = 1 − t, σ_t = t. With x_T = μ + s ε the step from t to r = t − Δt is
    mean      σ_r μ_k + c1 (x_t − σ_t μ_k) + c2 μ_{x,k}
    variance  s² c3 + c2² s_x²
with c1 = σ_r² α_t / (σ_t² α_r), c2 = β α_r / σ_t², c3 = β σ_r² / σ_t², β = σ_t² − (α_t / α_r)² σ_r².
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.detectors.mpfm.rounds import FINAL
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, Velocity

SAMPLED, SAMPLING_STEPS = 500, 8


class Coefficients(NamedTuple):
    """c1, c2, c3 of one reverse step."""

    c1: float
    c2: float
    c3: float


class Step(NamedTuple):
    """A Gaussian mixture over x_r: log weights (R, B, K), means (R, B, K, d), variances (R,)."""

    log_weight: Tensor
    mean: Tensor
    variance: Tensor


def coefficients(t: float, r: float) -> Coefficients:
    """Coefficients of the step from t down to r, 0 ≤ r < t ≤ 1."""
    if not 0 <= r < t <= 1:
        raise ValueError(f"a reverse step goes from t to r with 0 <= r < t <= 1, got t={t}, r={r}")
    ratio = (1 - t) / (1 - r)
    beta = t**2 - ratio**2 * r**2
    return Coefficients(c1=r**2 / t**2 * ratio, c2=beta / t**2 * (1 - r), c3=beta / t**2 * r**2)


def endpoint(velocity: Velocity, x_t: Tensor, t: float) -> tuple[Tensor, float]:
    """q(x_0 | x_t): means μ_{x,k} = x_t − σ_t μ_{u,k} (R, B, K, d) and s_x = σ_t s_u with s_u = 1."""
    return x_t[:, :, None] - t * velocity.mean, t


def reverse_step(
    velocity: Velocity, x_t: Tensor, t: float, r: float, target_mean: Tensor, target_scale: Tensor
) -> Step:
    """q(x_r | x_t) when component k ends in N(μ_k, s² I).

    Args:
        velocity: the velocity mixture at x_t.
        x_t: (R, B, d).
        t: the time of x_t.
        r: the earlier time.
        target_mean: μ_k of each component, (R, K, d).
        target_scale: s (R,).
    """
    c = coefficients(t, r)
    endpoint_mean, endpoint_scale = endpoint(velocity, x_t, t)
    target = target_mean[:, None]
    mean = r * target + c.c1 * (x_t[:, :, None] - t * target) + c.c2 * endpoint_mean
    return Step(velocity.log_weight, mean, target_scale**2 * c.c3 + c.c2**2 * endpoint_scale**2)


def sample_normals(flow: Flow, n: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw features of normals in the space where the flow starts, (R, n, d): x_T ~ P_GM, then reverse steps to t = 0.

    A coupled flow carries each point deterministically, so its chain is the field of the point's own component
    integrated backwards. In the printed form the mixture step above is sampled.
    """
    component, x = flow.prototypes.sample(n, generator)
    p = torch.nn.functional.one_hot(component, flow.prototypes.mean.shape[1]).float()
    for step in range(steps, 0, -1):
        t, r = step / steps, (step - 1) / steps
        time = x.new_full((*x.shape[:2], 1), t)
        if isinstance(flow.velocity, CoupledVelocity):
            x = x - (t - r) * flow.velocity.field(x, time, p)
            continue
        velocity = flow.velocity.components(x, time)
        transition = reverse_step(velocity, x, t, r, flow.prototypes.mean.detach(), flow.prototypes.scale)
        weight = transition.log_weight.exp().flatten(0, 1).cpu()
        drawn = torch.multinomial(weight, 1, generator=generator).view(*x.shape[:2], 1, 1).to(x.device)
        mean = transition.mean.gather(2, drawn.expand(-1, -1, -1, x.shape[2])).squeeze(2)
        x = mean + transition.variance.sqrt()[:, None, None] * torch.randn(x.shape, generator=generator).to(x.device)
    return x


def compare_with_samples(pieces: Mapping[str, Artefact], pooled: np.ndarray, seed: int) -> pd.DataFrame:
    """Real and sampled features of normals along the two main directions of the real ones.

    Args:
        pieces: prototypes and, where there was something to learn from, training of a fitted model.
        pooled: stored pooled statistics of normals, (n, d).
        seed: of the samples.
    """
    closed_form, training = ClosedForm.restore(pieces["prototypes"]), pieces.get("training")
    flow = closed_form.flow
    if training:
        flow = Modules.restore(training.tensors, training.details).of_round(FINAL).flow
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        real = closed_form.standardiser.z(torch.from_numpy(np.asarray(pooled[:SAMPLED])))
        drawn = closed_form.whitening.inverse(sample_normals(flow, len(real), SAMPLING_STEPS, generator)[0])
        center = real.mean(0)
        directions = torch.linalg.svd(real - center, full_matrices=False).Vh[:2].T
        table = pd.DataFrame(torch.cat([real - center, drawn - center]).matmul(directions).numpy())
    return table.set_axis(["first", "second"], axis=1).assign(kind=np.repeat(["real", "sampled"], len(real)))
