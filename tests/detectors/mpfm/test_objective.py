import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from mpfm_kedro.detectors.mpfm.flow import path_point
from mpfm_kedro.detectors.mpfm.objective import Losses, flow_losses, information, losses, mim_loss
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture

NETWORK = {f"flow.velocity.network.{name}" for name in ("read", "time", "bias", "write", "offset")}
PROTOTYPES = {"flow.prototypes.mean", "flow.prototypes.logit"}
REACHED = {
    "flow_n": NETWORK,
    "flow_a": NETWORK,
    "mim": NETWORK | PROTOTYPES,
    "score_g": NETWORK | PROTOTYPES | {"m_g.slope", "m_g.offset"},
    "score_r": {"m_r.log_weight", "r_logit.slope", "r_logit.offset"},
    "score_a": {"m_a.weight", "m_a.bias"},
    "score_n": {"m_n.weight", "m_n.bias"},
}


def generator():
    return torch.Generator().manual_seed(0)


def terms(problem, *printed, batch=None):
    problem.modules.printed |= {*printed}
    return losses(problem.modules, batch or problem.batch(), problem.parameters, generator())[0]


def flow_terms(problem, batch, *printed):
    problem.modules.printed |= {*printed}
    return flow_losses(problem.modules, batch, 0.4, generator())


def reached(problem, term, *printed):
    """Names of the parameters with a gradient."""
    problem.modules.zero_grad(set_to_none=True)
    getattr(terms(problem, *printed), term).sum().backward()
    found = problem.modules.named_parameters()
    return {name for name, p in found if p.grad is not None and p.grad.abs().sum() > 0}


@pytest.mark.parametrize("name", Losses._fields)
def test_each_term_trains_what_it_shall(problem, name):
    assert reached(problem, name) == REACHED[name]


def test_every_parameter_is_trained_by_some_term_and_no_buffer(problem):
    assert set().union(*REACHED.values()) == {name for name, _ in problem.modules.named_parameters()}
    assert not any(value.requires_grad for value in problem.modules.buffers())
    found = terms(problem)
    torch.testing.assert_close(found.total(0.3), sum(found) - 0.7 * found.mim)


def test_printed_forms_train_other_things(problem, make_problem):
    assert reached(problem, "score_g", "likelihood") == NETWORK | PROTOTYPES
    assert reached(make_problem(residual="printed").wake(), "score_r") >= REACHED["score_r"] | NETWORK


def test_normality_learns_the_normals_and_the_printed_form_the_anomalies(problem):
    batch, module = problem.batch(), problem.modules.m_n
    means = [batch.z[batch.abnormal == kind].mean(0) for kind in (False, True)]
    for printed, sign in ((), 1), (("normality_target",), -1):
        module.weight.data.zero_(), module.bias.data.zero_()
        (gradient,) = torch.autograd.grad(terms(problem, *printed, batch=batch).score_n.sum(), module.weight)
        assert -sign * gradient[-1] @ (means[0] - means[1]) > 0


def test_push_is_softplus_of_the_margin_per_dimension_and_knows_its_normals_as_constants(problem):
    batch, flow, draws = problem.batch(), problem.modules.flow, generator()
    x_t, t, u = path_point(batch.x, flow.target(batch.x, batch.p, draws), draws)
    log_q = flow.velocity.log_prob(u, x_t, t, batch.p) / 6
    of_normals = (batch.normals * log_q).sum(1)
    pushed = (batch.anomalies * softplus(log_q - of_normals.detach()[:, None] + 0.4)).sum(1)
    found = flow_terms(problem, batch)
    torch.testing.assert_close(torch.stack(found), torch.stack([-of_normals, pushed]))
    network = list(flow.velocity.parameters())
    for one, other in zip(*(torch.autograd.grad(loss.sum(), network) for loss in (found[1], pushed)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_push_is_bounded_and_the_printed_one_is_not(problem):
    batch = problem.batch()
    moved = batch._replace(x=batch.x + 1000 * batch.abnormal[:, None])
    near, far = (flow_terms(problem, own)[1] for own in (batch, moved))
    assert (near > far).all() and far.min() >= 0 and far.max() < 1e-3
    assert flow_terms(problem, moved, "push")[1].max() < -1000


def test_information_counts_normals_only(problem):
    batch = problem.batch()
    moved = batch._replace(x=batch.x + 7 * batch.abnormal[:, None])
    torch.testing.assert_close(terms(problem, batch=batch).mim, terms(problem, batch=moved).mim)
    repaired, printed = (terms(problem, *form, batch=batch).mim for form in ((), ("mutual_information",)))
    assert repaired.max() < 0 < printed.min()


def test_only_the_printed_information_reads_the_posterior_without_temper(problem):
    batch = problem.batch()
    powers = ((), problem.parameters.mim_sharpness / batch.x.shape[2]), (("mutual_information",), 1.0)
    for form, power in powers:
        prototypes = problem.modules.flow.prototypes
        squared = prototypes.squared_distances(problem.modules.flow.psi(batch.x, batch.p))
        expected = mim_loss(prototypes.posterior(squared, power), batch.normals, prototypes.share, bool(form))
        torch.testing.assert_close(terms(problem, *form, batch=batch).mim, expected)


def test_what_a_round_leaves_out_counts_nothing_in_it(problem):
    batch = problem.batch()
    torch.testing.assert_close(batch.normals.sum(1), torch.ones(4))
    before = torch.stack(terms(problem, batch=batch))
    for r in range(3):
        out = (batch.weight[r] == 0)[:, None]
        assert out.any()
        changed = batch._replace(x=batch.x + 3 * out, z=batch.z + 3 * out, squares=batch.squares + 3 * out)
        after = torch.stack(terms(problem, batch=changed._replace(v=batch.v + 3 * out[..., None])))
        torch.testing.assert_close(after[:, r], before[:, r])


def test_normals_alone_have_finite_terms(make_problem):
    problem = make_problem(n_known=0)
    found = terms(problem, batch=problem.training.batch(torch.arange(12), torch.arange(0)))
    assert all(value.isfinite().all() for value in found) and found.flow_a.abs().max() == 0


DIMENSION, K, SHARPNESS = 2304, 32, 50.0


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
    share, mean = torch.rand(1, K) + 0.2, 0.3 * torch.randn(1, K, DIMENSION)
    prototypes = PrototypeMixture(mean=mean, logit=share.log(), scale=torch.ones(1))
    psi = (mean[:, torch.arange(64) % K] + torch.randn(1, 64, DIMENSION)).requires_grad_()
    target = {"psi": psi, "mean": prototypes.mean, "logit": prototypes.logit}[wanted]
    weight = torch.full((1, 64), 1 / 64)

    def posterior(power=SHARPNESS / DIMENSION):
        return prototypes.posterior(prototypes.squared_distances(psi), power)

    def gradient(power):
        return torch.autograd.grad(mim_loss(posterior(power), weight, prototypes.share, printed).sum(), [target])[0]

    assert wanted == "logit" or gradient(1.0).norm() < 1e-6  # without temper it is dead
    before, step = information(posterior().detach(), weight), gradient(SHARPNESS / DIMENSION)
    with torch.no_grad():
        target -= 0.5 * step / step.norm()
    change = information(posterior().detach(), weight) - before
    assert (-change if printed else change) > 1e-3
