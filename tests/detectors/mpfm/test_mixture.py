import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture


def mixture(seed=0, k=4, d=3, scale=0.7, log_volume=None):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(k, generator=generator) + 0.2
    return PrototypeMixture(2 * torch.randn(k, d, generator=generator), weight / weight.sum(), scale, log_volume)


def points(prototypes, n=6, seed=1):
    return 2 * torch.randn(n, prototypes.mean.shape[1], generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 8), st.floats(0.2, 3.0))
def test_log_prob_is_that_of_the_mixture(seed, k, d, scale):
    prototypes = mixture(seed, k, d, scale)
    components = Independent(Normal(prototypes.mean, torch.full((k, d), scale)), 1)
    reference = MixtureSameFamily(Categorical(probs=prototypes.weight), components)
    x = points(prototypes)
    torch.testing.assert_close(prototypes.log_prob(x), reference.log_prob(x), rtol=1e-4, atol=1e-3)


def test_log_volume_scales_the_density_of_each_prototype():
    volume = torch.tensor([-3.0, 0.0, 1.0, 4.0])
    prototypes = mixture(log_volume=volume)
    x = points(prototypes)
    density = prototypes.components(x).exp() * volume.exp()
    torch.testing.assert_close(prototypes.log_prob(x), density.sum(1).log())


def test_weight_is_what_was_given():
    weight = torch.tensor([0.1, 0.2, 0.7])
    torch.testing.assert_close(PrototypeMixture(torch.zeros(3, 2), weight, 1.0).weight, weight)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([None, 0.5, 50.0]))
def test_posterior_sums_to_one_and_follows_bayes(seed, sharpness):
    prototypes = mixture(seed)
    x = points(prototypes)
    posterior = prototypes.posterior(x, sharpness)
    power = 1.0 if sharpness is None else sharpness / 3
    likelihood = -0.5 * torch.cdist(x, prototypes.mean).square() / 0.7**2
    joint = prototypes.weight.log() + power * likelihood
    torch.testing.assert_close(posterior.sum(1), torch.ones(6))
    torch.testing.assert_close(posterior, joint.softmax(1), rtol=1e-3, atol=1e-4)


def test_tempered_posterior_goes_from_the_prior_to_the_full_posterior():
    prototypes = mixture(d=5)
    x = points(prototypes)
    torch.testing.assert_close(prototypes.posterior(x, 1e-6), prototypes.weight.expand(6, -1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(prototypes.posterior(x, 5.0), prototypes.posterior(x))


def test_tempered_posterior_is_soft_where_the_full_one_is_one_hot():
    d = 2304
    generator = torch.Generator().manual_seed(0)
    prototypes = PrototypeMixture(0.3 * torch.randn(8, d, generator=generator), torch.full((8,), 1 / 8), 1.0)
    x = torch.randn(32, d, generator=generator) + prototypes.mean.detach()[torch.arange(32) % 8]
    assert prototypes.posterior(x).max(1).values.min() > 0.999999
    assert 0.3 < prototypes.posterior(x, 50.0).max(1).values.mean() < 0.999


def test_samples_have_the_moments_of_the_mixture():
    prototypes = mixture(k=3, d=2)
    sample = prototypes.sample(60_000, torch.Generator().manual_seed(3))
    weight, mean = prototypes.weight.detach(), prototypes.mean.detach()
    center = weight @ mean
    covariance = 0.49 * torch.eye(2) + (weight[:, None] * (mean - center)).T @ (mean - center)
    torch.testing.assert_close(sample.mean(0), center, atol=0.04, rtol=0)
    torch.testing.assert_close(sample.T.cov(), covariance, atol=0.08, rtol=0)
    assert not sample.requires_grad


def test_same_generator_gives_the_same_samples():
    first, second = (mixture().sample(5, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)


def test_deviation_is_from_the_nearest_prototype_in_units_of_s():
    prototypes = mixture(d=4)
    x = points(prototypes, 20)
    nearest = torch.cdist(x, prototypes.mean).argmin(1)
    torch.testing.assert_close(prototypes.deviation(x), (x - prototypes.mean[nearest]) / 0.7)


def test_density_integrates_to_one():
    prototypes = mixture(d=1)
    x = torch.linspace(-15, 15, 20_001)[:, None]
    assert prototypes.log_prob(x).exp().sum().item() * 30 / 20_000 == pytest.approx(1, abs=1e-3)


def test_only_means_and_weights_are_trained():
    assert {name for name, _ in mixture().named_parameters()} == {"mean", "logit"}


def test_constant_is_that_of_the_normal_density():
    prototypes = PrototypeMixture(torch.zeros(1, 6), torch.ones(1), 2.0)
    assert prototypes.log_prob(torch.zeros(1, 6)).item() == pytest.approx(-6 * math.log(2 * math.sqrt(2 * math.pi)))


def test_a_prototype_without_normals_does_no_harm():
    prototypes = PrototypeMixture(torch.eye(3), torch.tensor([0.5, 0.5, 0.0]), 1.0)
    x = points(prototypes)
    for value in (prototypes.posterior(x, 50.0), prototypes.deviation(x), prototypes.log_prob(x)):
        assert value.isfinite().all()
    assert (prototypes.posterior(x, 50.0)[:, 2] < 1e-3).all()
