import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture

R, B, K, D = 2, 7, 3, 4


@pytest.fixture
def prototypes():
    share = (torch.rand(R, K) + 0.2).log().softmax(1)
    return PrototypeMixture(
        mean=torch.randn(R, K, D), logit=share.log(), scale=torch.tensor([0.7, 1.6])
    ).requires_grad_(False)


def test_likelihood_posterior_and_residual_are_those_of_each_rounds_mixture(prototypes):
    x = 2 * torch.randn(R, B, D)
    squared, residual = prototypes.squared_distances(x), prototypes.residual(x)
    for r, (mean, share, scale) in enumerate(zip(prototypes.mean, prototypes.share, prototypes.scale, strict=True)):
        components = Independent(Normal(mean, scale.expand_as(mean)), 1)
        mixture = MixtureSameFamily(Categorical(share), components)
        torch.testing.assert_close(prototypes.nll(squared)[r], -mixture.log_prob(x[r]), rtol=1e-4, atol=1e-4)
        likelihood = components.log_prob(x[r, :, None]).exp()
        for power in (1.0, 0.3, 0.0):
            joint = share * likelihood**power
            bayes = joint / joint.sum(1, keepdim=True)
            torch.testing.assert_close(prototypes.posterior(squared, power)[r], bayes, rtol=1e-3, atol=1e-4)
        nearest = likelihood.argmax(1)
        torch.testing.assert_close(residual[r], (x[r] - mean[nearest]) / scale)
