import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from mpfm_kedro.detectors.mpfm.flow import Flow, path_point
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity

R, B, K, D = 2, 40, 3, 4


def generator():
    return torch.Generator().manual_seed(0)


def make_flow(steps=1):
    center = torch.randn(R, K, D)
    prototypes = PrototypeMixture(mean=center, logit=torch.zeros(R, K), scale=torch.ones(R))
    return Flow(CoupledVelocity(center=center, gain=torch.rand(R, K) + 0.4), prototypes, steps)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_point_of_one_group_is_carried_exactly_in_any_number_of_steps(steps):
    flow, x, group = make_flow(steps), 3 * torch.randn(R, B, D), torch.arange(B) % K
    p = torch.eye(K)[group].expand(R, -1, -1)
    center, gain = flow.velocity.center[:, group], flow.velocity.gain[:, group, None]
    torch.testing.assert_close(flow.psi(x, p), center + gain * (x - center), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(flow.psi(x, p) - x, flow.target(x, p, generator()), rtol=1e-4, atol=1e-4)


def test_the_group_of_the_target_is_drawn_from_the_weights():
    flow, p = make_flow(), torch.tensor([0.6, 0.3, 0.1])
    x = torch.randn(D).expand(R, 4000, D)
    u = flow.target(x, p.expand(R, 4000, K), generator())
    for r in range(R):
        choices = (flow.velocity.gain[r, :, None] - 1) * (x[r, :1] - flow.velocity.center[r])
        distance = torch.cdist(u[r], choices)
        assert distance.min(1).values.max() < 1e-3
        torch.testing.assert_close(distance.argmin(1).bincount() / 4000, p, rtol=0, atol=0.03)


def test_a_point_of_the_path_lies_between_its_ends_at_one_time_in_all_rounds():
    x, u = torch.randn(2, R, B, D)
    (x_t, t, target), (*_, printed) = (path_point(x, u, generator(), divided=divided) for divided in (False, True))
    assert torch.equal(t[0], t[1]) and t.min() >= 0 and t.max() <= 1 and torch.equal(target, u)
    torch.testing.assert_close(x_t, (1 - t) * x + t * (x + u))
    torch.testing.assert_close(printed * t.clamp_min(1e-3), u)


def test_where_all_gains_are_one_the_score_at_step_0_is_the_likelihood_of_a_gaussian_mixture(make_problem):
    problem = make_problem()
    model = problem.models[-1]
    model.flow.velocity.gain.fill_(1)
    x, p, _ = model.enter(problem.z)
    found = model.step_0(x, p).double().numpy()
    root = model.whitening.inverse(torch.eye(6)).double().numpy()  # A^{-1}, symmetric
    means = model.whitening.inverse(model.flow.velocity.center[0]).double().numpy()
    share, z = model.groups.share.double().numpy(), problem.z.double().numpy()
    by_group = np.stack([multivariate_normal(mean, root @ root).logpdf(z) for mean in means], 1)
    expected = -logsumexp(by_group + np.log(share), axis=1)
    np.testing.assert_array_equal(found.argsort(), expected.argsort())
    np.testing.assert_allclose(6 * found - expected, -np.linalg.slogdet(root)[1], atol=1e-3)
