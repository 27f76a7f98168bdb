import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from mpfm_kedro.detectors.mpfm.velocity import Velocity, VelocityMixture, time_features


def at_random(seed=0, b=5, c=3, d=4):
    generator = torch.Generator().manual_seed(seed)
    log_weight = torch.randn(b, c, generator=generator).log_softmax(1)
    return Velocity(log_weight, torch.randn(b, c, d, generator=generator)), torch.randn(b, d, generator=generator)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 6), st.floats(0.2, 3.0))
def test_log_prob_is_that_of_the_mixture(seed, c, d, scale):
    q, u = at_random(seed, c=c, d=d)
    components = Independent(Normal(q.mean, torch.full_like(q.mean, scale)), 1)
    reference = MixtureSameFamily(Categorical(logits=q.log_weight), components).log_prob(u)
    torch.testing.assert_close(q.log_prob(u, scale), reference, rtol=1e-4, atol=1e-4)


def test_field_is_the_mean_of_the_mixture():
    q, _ = at_random()
    by_hand = sum(q.log_weight[:, k, None].exp() * q.mean[:, k] for k in range(3))
    torch.testing.assert_close(q.field, by_hand)


def test_untrained_field_is_the_closed_form_of_the_modes(make_modes):
    modes = make_modes(d=5, ranks=(2, 3))
    velocity = VelocityMixture(5, 99, 8, modes).double()
    z_t, t = torch.randn(7, 5, dtype=torch.float64), torch.rand(7, 1, dtype=torch.float64)
    q, start = velocity(z_t, t), modes.at(z_t, t)
    assert velocity.components == 2
    torch.testing.assert_close(q.mean, start.velocity)
    torch.testing.assert_close(q.log_weight, start.log_prob.log_softmax(1))


def test_network_is_added_to_the_closed_form(make_modes):
    modes = make_modes(d=5, ranks=(2, 3))
    velocity = VelocityMixture(5, 99, 8, modes).double()
    for layer in (velocity.mean, velocity.logit):
        torch.nn.init.normal_(layer.weight)
    z_t, t = torch.randn(7, 5, dtype=torch.float64), torch.rand(7, 1, dtype=torch.float64)
    q, start, residual = velocity(z_t, t), modes.at(z_t, t), velocity.residual(z_t, t)
    assert residual.mean.abs().min() > 0
    torch.testing.assert_close(q.mean, start.velocity + residual.mean)
    posterior = start.log_prob.softmax(1) * residual.log_weight.exp()
    torch.testing.assert_close(q.log_weight.exp(), posterior / posterior.sum(1, keepdim=True))


def test_likelihood_of_velocities_reaches_every_layer_where_modes_overlap(make_modes):
    velocity = VelocityMixture(5, 99, 8, make_modes(d=5, ranks=(2, 3), far=0.3)).double()
    for layer in (velocity.mean, velocity.logit):
        torch.nn.init.normal_(layer.weight, std=0.1)
    q = velocity(torch.randn(7, 5, dtype=torch.float64), torch.rand(7, 1, dtype=torch.float64))
    q.log_prob(torch.randn(7, 5, dtype=torch.float64), 1.0).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in velocity.parameters())


def test_without_modes_every_component_comes_from_the_network():
    velocity = VelocityMixture(5, 6, 8, None)
    q = velocity(torch.randn(3, 5), torch.rand(3, 1))
    assert q.mean.shape == (3, 6, 5)
    assert q.mean.abs().max() == 0
    torch.testing.assert_close(q.log_weight.exp(), torch.full((3, 6), 1 / 6))


def test_time_features_tell_times_apart():
    features = time_features(torch.linspace(0, 1, 101)[:, None])
    distance = torch.cdist(features, features) + 10 * torch.eye(101)
    assert features.shape == (101, 16)
    assert distance.min() > 0.3


@pytest.mark.parametrize("with_modes", [True, False])
def test_modes_are_no_parameters_of_the_velocity(make_modes, with_modes):
    velocity = VelocityMixture(5, 2, 8, make_modes() if with_modes else None)
    assert not any(name.startswith("modes") for name, _ in velocity.named_parameters())
