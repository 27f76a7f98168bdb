"""Endpoint posterior and reverse chain: from the prototype space back to normal features.

Linear schedule α_t = 1 − t, σ_t = t. With x_T = μ + s ε the step from t to r = t − Δt is
    mean      σ_r μ_k + c1 (x_t − σ_t μ_k) + c2 μ_{x,k}
    variance  s² c3 + c2² s_x²
with c1 = σ_r² α_t / (σ_t² α_r), c2 = β α_r / σ_t², c3 = β σ_r² / σ_t², β = σ_t² − (α_t / α_r)² σ_r².
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.detector import MPFM
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity

SAMPLED, SAMPLING_STEPS = 500, 8


def coefficients(t: float, r: float) -> tuple[float, float, float]:
    """c1, c2, c3 of the step from t down to r, 0 ≤ r < t ≤ 1."""
    if not 0 <= r < t <= 1:
        raise ValueError(f"a reverse step goes from t to r with 0 <= r < t <= 1, got t={t}, r={r}")
    ratio = (1 - t) / (1 - r)
    beta = t**2 - ratio**2 * r**2
    return r**2 / t**2 * ratio, beta / t**2 * (1 - r), beta / t**2 * r**2


def reverse_step(
    velocity: Tensor, x_t: Tensor, t: float, r: float, prototypes: PrototypeMixture
) -> tuple[Tensor, Tensor]:
    """Means (R, B, K, d) and variance (R,) of the components of q(x_r | x_t), x_t (R, B, d), for r < t.

    Component k has the mean velocity μ_{u,k} (R, B, K, d), and ends in the prototype N(μ_k, s² I). The endpoint
    posterior q(x_0 | x_t) has the means μ_{x,k} = x_t − σ_t μ_{u,k} and s_x = σ_t s_u with s_u = 1.
    """
    c1, c2, c3 = coefficients(t, r)
    target = prototypes.mean.detach()[:, None]
    mean = r * target + c1 * (x_t[:, :, None] - t * target) + c2 * (x_t[:, :, None] - t * velocity)
    return mean, prototypes.scale**2 * c3 + c2**2 * t**2


def sample_normals(flow: Flow, n: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw features of normals in the space where the flow starts, (R, n, d): x_T ~ P_GM, then reverse steps to t = 0.

    A coupled flow carries each point deterministically, so its chain is the field of the point's own component
    integrated backwards. In the printed form the mixture step above is sampled.
    """
    prototypes = flow.prototypes
    component, x = prototypes.sample(n, generator)
    p = one_hot(component, prototypes.mean.shape[1]).float()
    for step in range(steps, 0, -1):
        t, r = step / steps, (step - 1) / steps
        time = x.new_full((*x.shape[:2], 1), t)
        if isinstance(flow.velocity, CoupledVelocity):
            x = x - (t - r) * flow.velocity.field(x, time, p)
            continue
        log_weight, velocity = flow.velocity.components(x, time)
        means, variance = reverse_step(velocity, x, t, r, prototypes)
        weight = log_weight.exp().flatten(0, 1).cpu()
        drawn = torch.multinomial(weight, 1, generator=generator).view(*x.shape[:2], 1, 1).to(x.device)
        noise = torch.randn(x.shape, generator=generator).to(x.device)
        x = means.take_along_dim(drawn, 2).squeeze(2) + variance.sqrt()[:, None, None] * noise
    return x


def compare_with_samples(fits: Mapping[str, Artefact], pooled: np.ndarray, seed: int) -> pd.DataFrame:
    """Real and sampled features of normals along the two main directions of the real ones.

    Args:
        fits: prototypes and, where there was something to learn from, training.
        pooled: stored pooled statistics of normals, (n, d).
        seed: of the samples.
    """
    model, generator = MPFM.restore(fits, 0), torch.Generator().manual_seed(seed)
    flow = model.trained.flow if model.trained else model.flow
    with torch.inference_mode():
        real = model.standardiser.z(torch.from_numpy(np.asarray(pooled[:SAMPLED])))
        drawn = sample_normals(flow, len(real), SAMPLING_STEPS, generator)[0]
        center = real.mean(0)
        directions = torch.linalg.svd(real - center, full_matrices=False).Vh[:2].T
        both = torch.cat([real - center, model.whitening.inverse(drawn) - center])
        table = pd.DataFrame(both.matmul(directions).numpy())
    return table.set_axis(["first", "second"], axis=1).assign(kind=np.repeat(["real", "sampled"], len(real)))
