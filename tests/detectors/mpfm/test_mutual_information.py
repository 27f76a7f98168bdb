import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.objective import information, mim_loss
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture

D, K, SHARPNESS = 2304, 32, 50.0


def even(posterior):
    return torch.full(posterior.shape[:2], 1 / posterior.shape[1])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 10), st.floats(0.1, 10.0))
def test_information_is_the_divergence_from_independence(seed, b, k, sharpness):
    torch.manual_seed(seed)
    posterior = (sharpness * torch.randn(2, b, k).double()).softmax(2)
    weight = torch.rand(2, b).double() * (torch.arange(b) % 3 != 1) + 1e-9  # a third counts nothing
    weight /= weight.sum(1, keepdim=True)
    found, joint = information(posterior, weight), weight[..., None] * posterior
    divergence = torch.xlogy(joint, joint / (weight[..., None] * joint.sum(1, keepdim=True)).clamp_min(1e-300))
    torch.testing.assert_close(found, divergence.sum((1, 2)), rtol=0, atol=1e-6)


def test_the_loss_is_minus_the_information_and_the_printed_form_has_the_other_sign():
    posterior = torch.randn(3, 20, 5).softmax(2)
    weight, share = even(posterior), posterior.mean(1)
    mutual = information(posterior, weight)
    torch.testing.assert_close(mim_loss(posterior, weight, share), -mutual)
    torch.testing.assert_close(mim_loss(posterior, weight, share, printed=True), mutual)


@pytest.mark.parametrize(
    ("wanted", "printed"), [("psi", False), ("mean", False), ("logit", False), ("psi", True), ("mean", True)]
)
def test_a_step_raises_the_information_at_the_usual_dimension_and_the_printed_form_lowers_it(wanted, printed):
    share, mean = torch.rand(1, K) + 0.2, 0.3 * torch.randn(1, K, D)
    prototypes = PrototypeMixture(mean=mean, logit=share.log(), scale=torch.ones(1))
    psi = (mean[:, torch.arange(64) % K] + torch.randn(1, 64, D)).requires_grad_()
    target = {"psi": psi, "mean": prototypes.mean, "logit": prototypes.logit}[wanted]
    weight = torch.full((1, 64), 1 / 64)

    def posterior(power=SHARPNESS / D):
        return prototypes.posterior(prototypes.squared_distances(psi), power)

    def gradient(power):
        return torch.autograd.grad(mim_loss(posterior(power), weight, prototypes.share, printed).sum(), [target])[0]

    assert wanted == "logit" or gradient(1.0).norm() < 1e-6  # without temper it is dead
    before, step = information(posterior().detach(), weight), gradient(SHARPNESS / D)
    with torch.no_grad():
        target -= 0.5 * step / step.norm()
    change = information(posterior().detach(), weight) - before
    assert (-change if printed else change) > 1e-3
