"""DPDL: the bridge against integrals, and the dispersion of directions."""

import numpy as np
import torch

from mpfm_kedro.detectors.baselines.dpdl import Bridge, dispersion_loss
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture


def bridge_and_prototypes(seed=0, d=2):
    rng = torch.Generator().manual_seed(seed)
    mean, share = 2 * torch.randn(3, d, generator=rng), torch.tensor([0.5, 0.3, 0.2])
    prototypes = PrototypeMixture(mean=mean[None], logit=share.log()[None], scale=torch.tensor([0.5]))
    return Bridge(mean, share), prototypes


def test_c_is_the_integral_of_the_potential():
    bridge, _ = bridge_and_prototypes()
    axis = torch.linspace(-12, 12, 601)
    y = torch.cartesian_prod(axis, axis)
    x = torch.tensor([[0.3, -0.4], [1.0, 0.5]])
    with torch.no_grad():
        area = float(axis[1] - axis[0]) ** 2
        integral = (x @ y.T + bridge.log_potential(y)).logsumexp(1) + np.log(area)
        torch.testing.assert_close(bridge.log_joint(x).logsumexp(1), integral, atol=1e-3, rtol=1e-3)
        density = (x @ y.T + bridge.log_potential(y) - integral[:, None]).exp() * area
        torch.testing.assert_close(bridge(x), density @ y, atol=1e-3, rtol=1e-3)


def test_the_bridge_learns_to_end_at_the_prototypes():
    bridge, prototypes = bridge_and_prototypes()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(bridge.parameters(), 0.03)
    for _ in range(600):
        x = torch.randn(128, 2, generator=generator)
        _, (ends,) = prototypes.sample(128, generator)
        loss = bridge.log_joint(x).logsumexp(1).mean() - bridge.log_potential(ends).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        (_, (ends,)), arrived = prototypes.sample(4000, generator), bridge(torch.randn(4000, 2, generator=generator))
    np.testing.assert_allclose(arrived.mean(0), ends.mean(0), atol=0.25)


def test_dispersion_is_least_where_directions_are_spread():
    angle = torch.arange(8) * torch.pi / 4
    even, close = (torch.stack([each.cos(), each.sin()], dim=1) for each in (angle, angle / 20))
    assert dispersion_loss(even) < dispersion_loss(close) - 1
    torch.testing.assert_close(dispersion_loss(3 * even), dispersion_loss(even))
