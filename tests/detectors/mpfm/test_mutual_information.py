import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.mutual_information import information, mim_loss

D, K, SHARPNESS = 2304, 32, 50.0


@pytest.mark.parametrize("k", [2, 5, 32])
def test_uniform_posteriors_carry_no_information(k):
    posterior = torch.full((10, k), 1 / k)
    assert float(information(posterior).mutual) == pytest.approx(0, abs=1e-6)
    assert float(information(posterior).conditional_entropy) == pytest.approx(math.log(k), rel=1e-5)


@pytest.mark.parametrize("k", [2, 5, 32])
def test_balanced_one_hot_posteriors_carry_log_k(k):
    posterior = torch.eye(k).repeat(3, 1)
    assert float(information(posterior).mutual) == pytest.approx(math.log(k), rel=1e-5)
    assert float(mim_loss(posterior, posterior.mean(0))) == pytest.approx(-math.log(k), rel=1e-5)


def test_one_prototype_for_all_carries_no_information():
    posterior = torch.eye(4)[torch.zeros(9, dtype=torch.long)]
    assert float(information(posterior).mutual) == pytest.approx(0, abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 10), st.floats(0.1, 10.0))
def test_information_lies_between_nothing_and_log_k(seed, b, k, sharpness):
    logits = sharpness * torch.randn(b, k, generator=torch.Generator().manual_seed(seed))
    posterior = logits.softmax(1)
    found = information(posterior)
    assert -1e-5 <= float(found.mutual) <= math.log(k) + 1e-5
    joint = posterior / b
    independent = posterior.mean(0) * torch.full((b, 1), 1 / b)
    divergence = torch.xlogy(joint, joint / independent.clamp_min(1e-30)).sum()
    assert float(found.mutual) == pytest.approx(float(divergence), abs=1e-4)


def test_printed_form_is_the_information_itself_with_the_weights_as_marginal():
    posterior = torch.rand(20, 5).softmax(1)
    weight = posterior.mean(0)
    assert float(mim_loss(posterior, weight, printed=True)) == pytest.approx(float(information(posterior).mutual))
    assert float(mim_loss(posterior, weight)) == pytest.approx(-float(information(posterior).mutual))


@pytest.mark.parametrize(
    ("wanted", "printed"), [("psi", False), ("mean", False), ("logit", False), ("psi", True), ("mean", True)]
)
def test_a_gradient_step_raises_the_information_and_the_printed_form_lowers_it(wanted, printed):
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(K, generator=generator) + 0.2
    prototypes = PrototypeMixture(0.3 * torch.randn(K, D, generator=generator), weight / weight.sum(), 1.0)
    assigned = prototypes.mean.detach()[torch.arange(64) % K]
    psi = (assigned + torch.randn(64, D, generator=generator)).requires_grad_()
    target = {"psi": psi, "mean": prototypes.mean, "logit": prototypes.logit}[wanted]

    def posterior():
        return prototypes.posterior(psi, SHARPNESS)

    before = information(posterior().detach()).mutual
    (gradient,) = torch.autograd.grad(mim_loss(posterior(), prototypes.weight, printed), [target])
    assert gradient.norm() > 1e-4
    with torch.no_grad():
        target -= 0.5 * gradient / gradient.norm()
    change = information(posterior().detach()).mutual - before
    assert (-change if printed else change) > 1e-3


def test_without_temper_the_gradient_is_dead_at_the_default_dimension():
    generator = torch.Generator().manual_seed(0)
    prototypes = PrototypeMixture(0.3 * torch.randn(K, D, generator=generator), torch.full((K,), 1 / K), 1.0)
    psi = prototypes.mean.detach()[torch.arange(64) % K] + torch.randn(64, D, generator=generator)
    size = {}
    for sharpness in (None, SHARPNESS):
        loss = mim_loss(prototypes.posterior(psi, sharpness), prototypes.weight)
        size[sharpness] = float(torch.autograd.grad(loss, [prototypes.mean])[0].norm())
    assert size[None] < 1e-8 < size[SHARPNESS]
