"""Endpoint posterior and reverse chain: from the prototype space back to normal features.

Linear schedule α_t = 1 − t, σ_t = t. With z_T = μ + s ε the step from t to r = t − Δt is
    mean      σ_r μ_k + c1 (z_t − σ_t μ_k) + c2 μ_{z,k}
    variance  s² c3 + c2² s_z²
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
from mpfm_kedro.detectors.mpfm.closed_form import unpack_final
from mpfm_kedro.detectors.mpfm.flow import load_flow
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.velocity import Velocity, VelocityMixture

SAMPLED, SAMPLING_STEPS = 500, 8


class Coefficients(NamedTuple):
    """c1, c2, c3 of one reverse step."""

    c1: float
    c2: float
    c3: float


class Step(NamedTuple):
    """A Gaussian mixture over z_r: log weights (B, C), means (B, C, d), one variance."""

    log_weight: Tensor
    mean: Tensor
    variance: float


def coefficients(t: float, r: float) -> Coefficients:
    """Coefficients of the step from t down to r, 0 ≤ r < t ≤ 1."""
    if not 0 <= r < t <= 1:
        raise ValueError(f"a reverse step goes from t to r with 0 <= r < t <= 1, got t={t}, r={r}")
    ratio = (1 - t) / (1 - r)
    beta = t**2 - ratio**2 * r**2
    return Coefficients(c1=r**2 / t**2 * ratio, c2=beta / t**2 * (1 - r), c3=beta / t**2 * r**2)


def endpoint(velocity: Velocity, z_t: Tensor, t: float, scale: float) -> tuple[Tensor, float]:
    """q(z_0 | z_t): means μ_{z,k} = z_t − σ_t μ_{u,k} (B, C, d) and s_z = σ_t s_u."""
    return z_t[:, None] - t * velocity.mean, t * scale


def reverse_step(
    velocity: Velocity,
    z_t: Tensor,
    t: float,
    r: float,
    target_mean: Tensor,
    target_scale: float,
    scale: float,
) -> Step:
    """q(z_r | z_t) when component k ends in N(μ_k, s² I).

    Args:
        velocity: the velocity mixture at z_t.
        z_t: (B, d).
        t: the time of z_t.
        r: the earlier time.
        target_mean: μ_k of each component, (C, d).
        target_scale: s.
        scale: s_u.
    """
    c = coefficients(t, r)
    endpoint_mean, endpoint_scale = endpoint(velocity, z_t, t, scale)
    mean = r * target_mean + c.c1 * (z_t[:, None] - t * target_mean) + c.c2 * endpoint_mean
    return Step(velocity.log_weight, mean, target_scale**2 * c.c3 + c.c2**2 * endpoint_scale**2)


def sample_normals(
    velocity: VelocityMixture,
    prototypes: PrototypeMixture,
    n: int,
    steps: int,
    scale: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw features of normals, (n, d): z_T from the prototypes, then ``steps`` reverse steps to t = 0.

    A closed-form start moves each point deterministically, so its chain is the field integrated backwards.
    Without modes the mixture step above is sampled.
    """
    z = prototypes.sample(n, generator)
    for step in range(steps, 0, -1):
        t, r = step / steps, (step - 1) / steps
        q = velocity(z, z.new_full((n, 1), t))
        if velocity.modes is not None:
            z = z - (t - r) * q.field
            continue
        transition = reverse_step(q, z, t, r, prototypes.mean.detach(), float(prototypes.scale), scale)
        component = torch.multinomial(transition.log_weight.exp().cpu(), 1, generator=generator).to(z.device)
        mean = transition.mean.gather(1, component[..., None].expand(-1, -1, z.shape[1])).squeeze(1)
        z = mean + transition.variance**0.5 * torch.randn(z.shape, generator=generator).to(z.device)
    return z


def compare_with_samples(pieces: Mapping[str, Artefact], pooled: np.ndarray, seed: int) -> pd.DataFrame:
    """Real and sampled features of normals along the two main directions of the real ones.

    Args:
        pieces: of a fitted model; with a trained flow its reverse chain is sampled, without one its modes.
        pooled: stored pooled statistics of normals, (n, d).
        seed: of the samples.
    """
    closed_form = unpack_final(pieces["closed_form"])
    standardiser, generator = closed_form.standardiser, torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        real = (
            torch.from_numpy(np.asarray(pooled[:SAMPLED])) - standardiser.pooled_center
        ) / standardiser.pooled_spread
        if "flow" in pieces:
            flow = load_flow(pieces["flow"], closed_form.modes)
            drawn = sample_normals(flow.velocity, flow.prototypes, len(real), SAMPLING_STEPS, 1.0, generator)
        else:
            drawn = closed_form.modes.sample(len(real), generator)
        center = real.mean(0)
        directions = torch.linalg.svd(real - center, full_matrices=False).Vh[:2].T
        table = pd.DataFrame(torch.cat([real - center, drawn - center]).matmul(directions).numpy())
    return table.set_axis(["first", "second"], axis=1).assign(kind=np.repeat(["real", "sampled"], len(real)))
