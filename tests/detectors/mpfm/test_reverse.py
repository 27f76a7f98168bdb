import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.closed_form import fit_closed_form
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.reverse import coefficients, compare_with_samples, endpoint, reverse_step, sample_normals
from mpfm_kedro.detectors.mpfm.velocity import Velocity, VelocityMixture

CPU = torch.device("cpu")

LEVELS = st.floats(-3.0, 3.0)
SCALES = st.floats(0.3, 3.0)


def forward(t, r, start_mean, start_scale, mu, s):
    """Mean and covariance of (z_0, z_r, z_t) of the Markov forward chain to z_T = μ + s ε."""
    ratio = (1 - t) / (1 - r)
    step = s**2 * (t**2 - ratio**2 * r**2)
    mean_r = (1 - r) * start_mean + r * mu
    mean = np.array([start_mean, mean_r, ratio * (mean_r - r * mu) + t * mu])
    v_0 = start_scale**2
    v_r = (1 - r) ** 2 * v_0 + r**2 * s**2
    covariance = np.array(
        [
            [v_0, (1 - r) * v_0, ratio * (1 - r) * v_0],
            [(1 - r) * v_0, v_r, ratio * v_r],
            [ratio * (1 - r) * v_0, ratio * v_r, ratio**2 * v_r + step],
        ]
    )
    return mean, covariance


def conditional(mean, covariance, wanted, given_index, value):
    gain = np.linalg.solve(covariance[np.ix_(given_index, given_index)], covariance[given_index, wanted])
    left = covariance[wanted, wanted] - covariance[wanted, given_index] @ gain
    return mean[wanted] + gain @ (np.asarray(value) - mean[given_index]), left


@st.composite
def steps(draw):
    t = draw(st.floats(0.05, 1.0))
    r = draw(st.floats(0.0, 0.95))
    assume(r < t - 0.02)
    return t, r


@settings(deadline=None, max_examples=60)
@given(steps(), LEVELS, SCALES, LEVELS, SCALES)
def test_forward_chain_has_the_marginals_of_the_straight_path(step, start_mean, start_scale, mu, s):
    t, r = step
    mean, covariance = forward(t, r, start_mean, start_scale, mu, s)
    np.testing.assert_allclose(mean[2], (1 - t) * start_mean + t * mu, atol=1e-9)
    np.testing.assert_allclose(covariance[2, 2], (1 - t) ** 2 * start_scale**2 + t**2 * s**2, rtol=1e-9)
    np.testing.assert_allclose(covariance[0, 2], (1 - t) * start_scale**2, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(steps(), LEVELS, LEVELS, SCALES, LEVELS, LEVELS)
def test_coefficients_are_those_of_the_bridge_between_both_ends(step, start_mean, mu, s, z_0, z_t):
    t, r = step
    mean, variance = conditional(*forward(t, r, start_mean, 1.3, mu, s), 1, [0, 2], [z_0, z_t])
    c = coefficients(t, r)
    np.testing.assert_allclose(r * mu + c.c1 * (z_t - t * mu) + c.c2 * z_0, mean, atol=1e-7)
    np.testing.assert_allclose(s**2 * c.c3, variance, atol=1e-7)


@settings(deadline=None, max_examples=60)
@given(steps(), LEVELS, SCALES, LEVELS, SCALES, LEVELS)
def test_reverse_step_is_the_conditional_of_the_joint(step, start_mean, start_scale, mu, s, z_t):
    t, r = step
    joint = forward(t, r, start_mean, start_scale, mu, s)
    start, start_variance = conditional(*joint, 0, [2], [z_t])
    mean, variance = conditional(*joint, 1, [2], [z_t])
    # the velocity that knows the posterior of z_0 exactly, beside a component that aims elsewhere
    velocity = Velocity(torch.tensor([[0.3, 0.7]]).log(), torch.tensor([[[(z_t - start) / t], [5.0]]]))
    scale = float(np.sqrt(start_variance)) / t
    found = reverse_step(velocity, torch.tensor([[z_t]]), t, r, torch.tensor([[mu], [mu]]), s, scale)
    assert float(found.mean[0, 0, 0]) == pytest.approx(mean, abs=1e-4)
    assert found.variance == pytest.approx(variance, abs=1e-6, rel=1e-6)
    torch.testing.assert_close(found.log_weight, velocity.log_weight)


def test_reverse_step_agrees_with_samples():
    rng = np.random.default_rng(0)
    n, t, r, mu, s = 400_000, 0.7, 0.45, np.array([1.5, -2.0]), 1.8
    ratio = (1 - t) / (1 - r)
    z_0 = rng.gamma(2.0, size=(n, 2))  # what the features are does not matter given both ends
    z_r = (1 - r) * z_0 + r * (mu + s * rng.normal(size=(n, 2)))
    z_t = t * mu + ratio * (z_r - r * mu) + s * np.sqrt(t**2 - ratio**2 * r**2) * rng.normal(size=(n, 2))
    c = coefficients(t, r)
    for axis in range(2):
        inputs = np.column_stack([z_t[:, axis] - t * mu[axis], z_0[:, axis], np.ones(n)])
        slopes, residual, *_ = np.linalg.lstsq(inputs, z_r[:, axis], rcond=None)
        np.testing.assert_allclose(slopes, [c.c1, c.c2, r * mu[axis]], atol=0.015)
        assert residual.item() / n == pytest.approx(s**2 * c.c3, rel=0.02)


def test_reverse_step_with_centred_unit_targets_is_the_one_of_the_paper():
    c = coefficients(0.6, 0.5)
    z_t, u = torch.tensor([[0.4, -1.0]]), torch.tensor([[[0.3, 0.2]]])
    found = reverse_step(Velocity(torch.zeros(1, 1), u), z_t, 0.6, 0.5, torch.zeros(1, 2), 1.0, 0.5)
    torch.testing.assert_close(found.mean[:, 0], c.c1 * z_t + c.c2 * (z_t - 0.6 * u[:, 0]))
    assert found.variance == pytest.approx(c.c3 + c.c2**2 * (0.6 * 0.5) ** 2)


def test_last_step_gives_the_endpoint_posterior():
    velocity = Velocity(torch.zeros(1, 1), torch.tensor([[[2.0, 1.0]]]))
    z_t = torch.tensor([[3.0, 4.0]])
    mean, scale = endpoint(velocity, z_t, 0.5, 0.8)
    found = reverse_step(velocity, z_t, 0.5, 0.0, torch.tensor([[7.0, 7.0]]), 2.0, 0.8)
    torch.testing.assert_close(mean, torch.tensor([[[2.0, 3.5]]]))
    torch.testing.assert_close(found.mean, mean)
    assert scale == pytest.approx(0.4)
    assert found.variance == pytest.approx(0.16)


@pytest.mark.parametrize(("t", "r"), [(0.5, 0.5), (0.4, 0.6), (1.1, 0.5), (0.5, -0.1)])
def test_a_step_in_the_wrong_direction_is_an_error(t, r):
    with pytest.raises(ValueError, match="reverse step"):
        coefficients(t, r)


@pytest.mark.parametrize("steps", [1, 4])
def test_sampled_normals_have_mean_and_covariance_of_the_mode(make_modes, covariances, steps):
    modes = make_modes(d=4, ranks=(2,)).float()
    prototypes = PrototypeMixture(modes.target_mean, torch.ones(1), 1.0)
    velocity = VelocityMixture(4, 1, 8, modes)
    with torch.no_grad():
        sample = sample_normals(velocity, prototypes, 40_000, steps, 1.0, torch.Generator().manual_seed(0))
    torch.testing.assert_close(sample.mean(0), modes.mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(sample.T.cov(), covariances(modes)[0], atol=0.1, rtol=0)


def test_sampled_normals_of_several_modes_keep_their_shares_and_shapes(make_modes, covariances):
    modes = make_modes(d=4, ranks=(2, 3), far=15.0).float()
    prototypes = PrototypeMixture(modes.target_mean, modes.weight, 1.0)
    with torch.no_grad():
        velocity = VelocityMixture(4, 2, 8, modes)
        sample = sample_normals(velocity, prototypes, 40_000, 1, 1.0, torch.Generator().manual_seed(0))
    mode = modes.posterior(sample).argmax(1)
    for j in range(2):
        own = sample[mode == j]
        assert len(own) / len(sample) == pytest.approx(float(modes.weight[j]), abs=0.01)
        torch.testing.assert_close(own.mean(0), modes.mean[j], atol=0.06, rtol=0)
        torch.testing.assert_close(own.T.cov(), covariances(modes)[j], atol=0.15, rtol=0)


def test_sampled_chain_without_modes_ends_where_its_velocity_aims():
    targets = torch.tensor([[3.0, 0.0], [-3.0, 1.0]])

    class Aimed:
        modes = None

        def __call__(self, z_t, t):
            log_weight = torch.tensor([0.25, 0.75]).log().expand(len(z_t), -1)
            return Velocity(log_weight, (z_t[:, None] - targets) / t[..., None])

    prototypes = PrototypeMixture(torch.tensor([[1.0, 5.0], [2.0, -4.0]]), torch.tensor([0.5, 0.5]), 0.6)
    sample = sample_normals(Aimed(), prototypes, 4000, 3, 1e-4, torch.Generator().manual_seed(0))
    distance = torch.cdist(sample, targets)
    assert distance.min(1).values.max() < 1e-2
    assert float((distance.argmin(1) == 0).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_features_drawn_from_the_modes_lie_where_the_real_ones_do(make_rows):
    rng = np.random.default_rng(0)
    pooled = 3 + rng.normal(size=(300, 6)) * np.array([4.0, 2.0, 0.5, 0.5, 0.5, 0.5])
    closed_forms, _ = fit_closed_form(make_rows(pooled), 1, 50, 10, 0.1, 200, 0, CPU)
    table = compare_with_samples({"closed_form": closed_forms.pack({})}, pooled.astype(np.float32), 0)
    assert table["kind"].value_counts().to_dict() == {"real": 300, "sampled": 300}
    moments = table.groupby("kind")[["first", "second"]].agg(["mean", "std"])
    np.testing.assert_allclose(moments.loc["sampled"], moments.loc["real"], atol=0.2)
    other = compare_with_samples({"closed_form": closed_forms.pack({})}, pooled.astype(np.float32), 1)
    assert (table["first"] != other["first"]).any()
