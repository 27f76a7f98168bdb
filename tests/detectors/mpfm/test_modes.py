import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from mpfm_kedro.detectors.mpfm.modes import Modes

SEEDS = st.integers(0, 10_000)
TIMES = st.floats(0.0, 1.0)


@st.composite
def shapes(draw):
    d = draw(st.integers(2, 7))
    ranks = draw(st.lists(st.integers(0, d), min_size=1, max_size=3).filter(lambda ranks: max(ranks) > 0))
    return {"seed": draw(SEEDS), "d": d, "ranks": tuple(ranks)}


def around(modes, n, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    mode = torch.randint(modes.n_modes, (n,), generator=generator)
    return modes.mean[mode] + spread * torch.randn(n, modes.mean.shape[1], generator=generator, dtype=torch.float64)


def inverse_roots(covariance):
    """Dense A_j = Σ_j^{-1/2}."""
    value, vector = torch.linalg.eigh(covariance)
    return vector @ torch.diag_embed(value.rsqrt()) @ vector.mT


@settings(deadline=None, max_examples=40)
@given(shapes())
def test_log_prob_is_that_of_the_dense_covariance(make_modes, covariances, shape):
    modes = make_modes(**shape)
    z = around(modes, 6)
    dense = MultivariateNormal(modes.mean, covariances(modes)).log_prob(z[:, None]) + modes.weight.log()
    torch.testing.assert_close(modes.log_prob(z), dense, rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(shapes())
def test_log_det_is_minus_half_of_that_of_the_covariance(make_modes, covariances, shape):
    modes = make_modes(**shape)
    torch.testing.assert_close(modes.log_det, -0.5 * torch.logdet(covariances(modes)), rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(shapes(), TIMES)
def test_density_on_the_path_is_that_of_the_interpolated_samples(make_modes, covariances, shape, t):
    modes = make_modes(**shape)
    covariance = covariances(modes)
    stretch = (1 - t) * torch.eye(shape["d"], dtype=torch.float64) + t * inverse_roots(covariance)
    z_t = around(modes, 6)
    moved = MultivariateNormal((1 - t) * modes.mean + t * modes.target_mean, stretch @ covariance @ stretch.mT)
    found = modes.at(z_t, torch.full((6, 1), t, dtype=torch.float64)).log_prob
    torch.testing.assert_close(found, modes.weight.log() + moved.log_prob(z_t[:, None]), rtol=1e-7, atol=1e-7)


@settings(deadline=None, max_examples=40)
@given(shapes(), TIMES, TIMES)
def test_one_euler_step_of_any_length_is_exact_for_one_mode(make_modes, covariances, shape, t, r):
    modes = make_modes(shape["seed"], shape["d"], (max(shape["ranks"]),))
    z_0 = around(modes, 5)
    z_end = modes.target_mean + (z_0 - modes.mean) @ inverse_roots(covariances(modes))[0]
    at_t, at_r = ((1 - time) * z_0 + time * z_end for time in (t, r))
    velocity = modes.at(at_t, torch.full((5, 1), t, dtype=torch.float64)).velocity[:, 0]
    torch.testing.assert_close(velocity, z_end - z_0, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(at_t + (r - t) * velocity, at_r, rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=30)
@given(shapes(), TIMES)
def test_a_path_that_is_given_changes_nothing(make_modes, shape, t):
    modes = make_modes(**shape)
    z_0, z_end, time = around(modes, 5), around(modes, 5) + 1.3, torch.full((5, 1), t, dtype=torch.float64)
    z_t = (1 - t) * z_0 + t * z_end
    found, expected = modes.at(z_t, time, modes.path(z_0, z_end)), modes.at(z_t, time)
    torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.velocity, expected.velocity, rtol=1e-8, atol=1e-8)


def test_velocities_of_several_modes_are_each_its_own(make_modes):
    modes = make_modes(ranks=(1, 3, 4))
    z_t, t = around(modes, 5), torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    together = modes.at(z_t, t).velocity
    for j in range(3):
        one = Modes(*(getattr(modes, name)[j : j + 1] for name in modes.state_dict())).double()
        torch.testing.assert_close(together[:, j], one.at(z_t, t).velocity[:, 0], rtol=1e-5, atol=1e-5)


def test_samples_of_a_mode_are_moved_to_its_place_and_whitened(make_modes, covariances):
    modes = make_modes(d=4, ranks=(2,))
    torch.manual_seed(0)
    z = MultivariateNormal(modes.mean[0], covariances(modes)[0]).sample((40_000,))
    moved = modes.start(z).psi
    torch.testing.assert_close(moved.mean(0), modes.target_mean[0], atol=0.03, rtol=0)
    torch.testing.assert_close(moved.T.cov(), torch.eye(4, dtype=torch.float64), atol=0.04, rtol=0)


def test_start_is_the_posterior_mean_of_the_modes_own_maps(make_modes, covariances):
    modes = make_modes(far=0.5, ranks=(1, 2, 3))
    z = around(modes, 8)
    roots = inverse_roots(covariances(modes))
    moved = modes.target_mean + torch.einsum("jde,bje->bjd", roots, z[:, None] - modes.mean)
    psi, log_prob = modes.start(z)
    torch.testing.assert_close(psi, torch.einsum("bj,bjd->bd", modes.posterior(z), moved), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(log_prob, modes.log_prob(z), rtol=1e-8, atol=1e-8)


def test_energy_at_the_endpoint_is_the_mahalanobis_distance(make_modes, covariances):
    modes = make_modes(d=6, ranks=(3,))
    z = around(modes, 50, spread=4.0)
    offset = z - modes.mean
    mahalanobis = torch.einsum("bd,de,be->b", offset, covariances(modes)[0].inverse(), offset)
    torch.testing.assert_close(
        (modes.endpoint(z) - modes.target_mean).square().sum(1), mahalanobis, rtol=1e-8, atol=1e-8
    )


def test_posterior_is_bayes_rule(make_modes, covariances):
    modes = make_modes(far=0.5, ranks=(1, 2, 3))
    z = around(modes, 8)
    joint = modes.weight * MultivariateNormal(modes.mean, covariances(modes)).log_prob(z[:, None]).exp()
    torch.testing.assert_close(modes.posterior(z), joint / joint.sum(1, keepdim=True))
    torch.testing.assert_close(modes.posterior(z).sum(1), torch.ones(8, dtype=torch.float64))


def test_endpoint_draws_the_mode_from_its_posterior(make_modes):
    modes = make_modes(far=0.3, ranks=(2, 3))
    z = modes.mean.mean(0, keepdim=True)
    share = modes.posterior(z)[0, 0]
    assert 0.1 < share < 0.9
    ends = modes.endpoint(z.expand(4000, -1), torch.Generator().manual_seed(1))
    choices = z + modes.at(z, torch.zeros(1, 1, dtype=torch.float64)).velocity[0]
    distance = torch.cdist(ends, choices)
    assert distance.min(1).values.max() < 1e-6
    assert (distance.argmin(1) == 0).double().mean() == pytest.approx(float(share), abs=0.04)


def test_samples_have_the_shares_means_and_covariances_of_the_modes(make_modes, covariances):
    modes = make_modes(d=4, ranks=(2, 3, 0), far=15.0).float()
    sample = modes.sample(60_000, torch.Generator().manual_seed(0))
    assert sample.shape == (60_000, 4)
    mode = modes.posterior(sample).argmax(1)
    for j, covariance in enumerate(covariances(modes)):
        own = sample[mode == j]
        assert len(own) / len(sample) == pytest.approx(float(modes.weight[j]), abs=0.01)
        torch.testing.assert_close(own.mean(0), modes.mean[j], atol=0.06, rtol=0)
        torch.testing.assert_close(own.T.cov(), covariance, atol=0.15, rtol=0)


@settings(deadline=None, max_examples=20)
@given(shapes())
def test_sampling_is_the_transport_backwards(make_modes, shape):
    modes = make_modes(shape["seed"], shape["d"], (max(shape["ranks"]),)).float()
    generator = torch.Generator().manual_seed(1)
    sample = modes.sample(7, generator)
    again = torch.Generator().manual_seed(1)
    torch.multinomial(modes.weight, 7, replacement=True, generator=again)
    noise = torch.randn(7, shape["d"], generator=again)
    torch.testing.assert_close(modes.start(sample).psi, modes.target_mean + noise, rtol=1e-3, atol=1e-3)


def test_single_precision_is_enough_at_the_default_dimension():
    rng = np.random.default_rng(0)
    d, rank = 2304, 60
    basis = np.linalg.qr(rng.normal(size=(d, rank)))[0]
    variance, remainder = np.geomspace(40.0, 0.5, rank), 0.02
    mean = rng.normal(size=d)
    arrays = (np.ones(1), mean[None], basis[None], variance[None], np.array([remainder]), np.zeros((1, d)))
    modes = Modes(*(torch.from_numpy(array) for array in arrays))
    z = mean + rng.normal(size=(20, d)) * np.sqrt(remainder) + rng.normal(size=(20, rank)) @ basis.T * 3
    inside = (z - mean) @ basis
    outside = np.square(z - mean).sum(1) - np.square(inside).sum(1)
    volume = np.log(variance).sum() + (d - rank) * np.log(remainder) + d * np.log(2 * np.pi)
    exact = -0.5 * (np.square(inside) @ (1 / variance) + outside / remainder + volume)
    found = modes.log_prob(torch.from_numpy(z).float())[:, 0].double().numpy()
    np.testing.assert_allclose(found / d, exact / d, atol=1e-4)


def test_modes_have_nothing_to_train(make_modes):
    modes = make_modes()
    assert list(modes.parameters()) == []
    assert not any(buffer.requires_grad for buffer in modes.buffers())


def test_each_sample_is_the_root_of_its_modes_covariance_times_noise(make_modes, covariances):
    modes = make_modes(d=6, ranks=(2, 5, 0)).float()
    sample = modes.sample(40, torch.Generator().manual_seed(2))
    again = torch.Generator().manual_seed(2)
    mode = torch.multinomial(modes.weight, 40, replacement=True, generator=again)
    noise = torch.randn(40, 6, generator=again)
    variance, basis = torch.linalg.eigh(covariances(modes))
    root = torch.einsum("jde,je,jfe->jdf", basis, variance.sqrt(), basis)
    torch.testing.assert_close(sample, modes.mean[mode] + torch.einsum("bde,be->bd", root[mode], noise))
