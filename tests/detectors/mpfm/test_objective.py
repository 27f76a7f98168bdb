import pytest
import torch
from torch.nn.functional import softplus

from mpfm_kedro.detectors.mpfm.flow import path_point
from mpfm_kedro.detectors.mpfm.objective import Losses, flow_losses, losses

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
