import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, NetworkVelocity, ResidualNetwork

R, B, D = 2, 5, 4


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def made(k=3, seed=0, printed=False):
    """A velocity with an awake network in double precision, and points where it is read: x_t, t and p."""
    torch.manual_seed(seed)
    network = ResidualNetwork.start(R, D, 6, k * (D + 1) if printed else D, torch.Generator()).double()
    network.write.data, network.offset.data = 0.3 * double(*network.write.shape), 0.3 * double(*network.offset.shape)
    velocity = (
        NetworkVelocity(network)
        if printed
        else CoupledVelocity(network, center=double(R, k, D), gain=double(R, k).exp())
    )
    return velocity, (double(R, B, D), torch.rand(R, B, 1).double(), double(R, B, k).softmax(2))


def components(velocity, x_t, t, p):
    """All component means written out."""
    if isinstance(velocity, NetworkVelocity):
        return velocity.components(x_t, t)
    gain = velocity.gain[:, None]
    rate = (gain - 1) / ((1 - t) + t * gain)
    mean = rate[..., None] * (x_t[:, :, None] - velocity.center[:, None])
    return p.log(), mean + velocity.residual(x_t, t)[:, :, None]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_field_and_likelihood_are_those_of_the_components_written_out(k, seed, printed):
    velocity, at = made(k, seed, printed)
    (log_weight, mean), u = components(velocity, *at), double(R, B, D)
    mixture = MixtureSameFamily(Categorical(logits=log_weight), Independent(Normal(mean, torch.ones_like(mean)), 1))
    torch.testing.assert_close(velocity.field(*at), mixture.mean)
    torch.testing.assert_close(velocity.log_prob(u, *at), mixture.log_prob(u))


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_each_component_moves_along_the_straight_path_of_its_group(t):
    velocity, (x, *_) = made()
    velocity.network = None
    end = velocity.center[:, None] + velocity.gain[:, None, :, None] * (x[:, :, None] - velocity.center[:, None])
    for k in range(3):
        x_t = (1 - t) * x + t * end[:, :, k]
        found = velocity.field(x_t, torch.full((R, B, 1), t).double(), torch.eye(3).double()[k].expand(R, B, 3))
        torch.testing.assert_close(found, end[:, :, k] - x, rtol=1e-6, atol=1e-6)


def test_a_new_network_adds_nothing_and_a_printed_one_has_distinct_components():
    x, t = torch.randn(R, B, D), torch.rand(R, B, 1)
    assert ResidualNetwork.start(R, D, 6, D, torch.Generator())(x, t).abs().max() == 0
    printed = NetworkVelocity(ResidualNetwork.start(R, D, 6, 3 * (D + 1), torch.Generator(), zero=False))
    _, mean = printed.components(x, t)
    assert (mean[:, :, 0] - mean[:, :, 1]).abs().min() > 0
