import dataclasses
import itertools

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from mpfm_kedro.detectors.mpfm.modes import Path
from mpfm_kedro.detectors.mpfm.objective import Batch, flow_losses, losses
from mpfm_kedro.detectors.mpfm.trainer import draw_batch

VELOCITY = "velocity."
# where the modes lie far apart nothing moves the weights of the components: velocity.logit may stay
FLOW = {"velocity.read", "velocity.time", "velocity.mix", "velocity.mean", "velocity.logit"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch(problem, schedule):
    return draw_batch(problem.training, schedule, generator(), torch.device("cpu"))


def reached(flow, loss):
    """Names of the parameters with a gradient."""
    flow.zero_grad(set_to_none=True)
    loss.backward()
    return {name for name, p in flow.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


def layers(names):
    return {name.rsplit(".", 1)[0] for name in names}


@pytest.fixture
def terms(problem, batch, options, wake):
    """Every term of the awake flow, computed anew for each backward pass."""
    flow = wake(problem.flow)

    def term(name, **changes):
        found, _ = losses(flow, batch, dataclasses.replace(options, **changes), generator(1))
        return getattr(found, name)

    return flow, term


@pytest.mark.parametrize("name", ["flow_normal", "flow_anomaly"])
def test_flow_losses_train_the_velocity_network_alone(terms, name):
    flow, term = terms
    found = layers(reached(flow, term(name)))
    assert FLOW - {"velocity.logit"} <= found <= FLOW


def test_flow_losses_leave_the_prototypes_alone_with_an_independent_draw_too(terms, problem, batch, options):
    flow, _ = terms
    drawn = dataclasses.replace(batch, path=None)
    loss = sum(flow_losses(flow, drawn, batch.label == 0, options, generator()))
    found = layers(reached(flow, loss))
    assert FLOW - {"velocity.logit"} <= found <= FLOW


@pytest.mark.parametrize("name", ["mim", "score_g"])
def test_information_and_global_score_train_flow_and_prototypes(terms, name):
    flow, term = terms
    found = reached(flow, term(name))
    assert found >= {"prototypes.mean", "prototypes.logit"}
    assert layers(found) >= FLOW - {"velocity.logit"}
    own = {"global_score.slope", "global_score.offset"} if name == "score_g" else set()
    assert {item for item in found if not item.startswith(VELOCITY)} == {"prototypes.mean", "prototypes.logit"} | own


def test_scale_and_modes_are_never_trained(terms, problem, options, batch):
    flow, _ = terms
    found, _ = losses(flow, batch, options, generator())
    found.total(options).backward()
    trained = {name for name, _ in flow.named_parameters()}
    assert not {name for name in trained if "modes" in name or "scale" in name}
    assert all(not buffer.requires_grad and buffer.grad is None for buffer in flow.buffers())


def test_total_is_the_weighted_sum(problem, batch, options, wake):
    found, _ = losses(wake(problem.flow), batch, options, generator())
    torch.testing.assert_close(found.total(options), sum(found) - 0.9 * found.mim)


def test_global_score_is_trained_on_the_labels(problem, batch, options, wake):
    flow = wake(problem.flow)
    found, _ = losses(flow, batch, options, generator())
    score = flow.global_score(flow.nll(flow.psi(batch.z, batch.start)))
    torch.testing.assert_close(found.score_g, binary_cross_entropy_with_logits(score, (batch.label != 0).float()))


def test_label_two_counts_as_an_anomaly(problem, batch, options, wake):
    flow = wake(problem.flow)
    ones, twos = (
        losses(flow, dataclasses.replace(batch, label=batch.label * factor), options, generator())[0]
        for factor in (1, 2)
    )
    torch.testing.assert_close(torch.stack(list(ones)), torch.stack(list(twos)))


def pushed(problem, batch, options, distance):
    """The push when anomalies end ``distance`` away from where the field sends them."""
    end = batch.path.end + distance * (batch.label != 0).float()[:, None]
    path = problem.flow.modes.path(batch.z, end)
    return flow_losses(problem.flow, dataclasses.replace(batch, path=path), batch.label == 0, options, generator())


def test_push_is_bounded_and_fades_as_anomalies_become_unlikely(problem, batch, options):
    found = [pushed(problem, batch, options, distance)[1].item() for distance in (0, 1, 2, 5, 1000)]
    assert all(later < earlier for earlier, later in itertools.pairwise(found))
    assert 0 <= found[-1] < 1e-3
    assert found[0] < 10
    assert len({pushed(problem, batch, options, distance)[0].item() for distance in (0, 5)}) == 1


def test_push_is_softplus_of_the_margin_per_dimension(problem, batch, options):
    normal = batch.label == 0
    push_margin = 0.4
    flow_normal, flow_anomaly = flow_losses(
        problem.flow, batch, normal, dataclasses.replace(options, push_margin=push_margin), generator(5)
    )
    t = torch.rand(len(batch.z), 1, generator=generator(5))
    q = problem.flow.velocity((1 - t) * batch.z + t * batch.path.end, t)
    log_prob = q.log_prob(batch.path.end - batch.z, 1.0) / batch.z.shape[1]
    torch.testing.assert_close(flow_normal, -log_prob[normal].mean())
    margin = log_prob[~normal] - log_prob[normal].mean() + push_margin
    torch.testing.assert_close(flow_anomaly, softplus(margin).mean())


def test_untrained_field_fits_the_coupled_normals_perfectly(problem, batch, options):
    flow_normal, _ = flow_losses(problem.flow, batch, batch.label == 0, options, generator())
    perfect = 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(flow_normal, perfect, rtol=0, atol=1e-3)


def test_normals_alone_push_nothing(problem, options):
    rows = problem.training.normals
    z = torch.from_numpy(rows.z[:8])
    batch = Batch(z, None, Path(*(part[:8] for part in rows.path)), torch.zeros(8))
    found, _ = losses(problem.flow, batch, options, generator())
    assert found.flow_anomaly.item() == 0
    assert all(value.isfinite() for value in found)


def test_information_counts_normals_only(problem, batch, options):
    psi = batch.start.psi + 7 * batch.label[:, None]
    moved = dataclasses.replace(batch, start=batch.start._replace(psi=psi))
    first, second = (losses(problem.flow, b, options, generator())[1].mutual for b in (batch, moved))
    torch.testing.assert_close(first, second)


def test_printed_information_has_the_other_sign(terms):
    _, term = terms
    repaired, printed = term("mim"), term("mim", printed_mutual_information=True)
    assert repaired.item() < 0 < printed.item()


def test_push_moves_anomalies_and_not_the_normals_they_are_compared_with(problem, batch, options):
    z = batch.z.clone().requires_grad_()
    normal = batch.label == 0
    _, push = flow_losses(problem.flow, dataclasses.replace(batch, z=z), normal, options, generator())
    push.backward()
    assert z.grad[normal].abs().max() == 0
    assert z.grad[~normal].abs().max() > 0


def test_pseudo_anomalies_count_by_their_weight(problem, batch, options, wake):
    flow = wake(problem.flow)
    without = dataclasses.replace(options, pseudo_weight=0.0)
    with torch.inference_mode():
        half, _ = losses(flow, batch, dataclasses.replace(options, pseudo_weight=0.5), generator(1))
        whole, _ = losses(flow, batch, options, generator(1))
        none, _ = losses(flow, batch, without, generator(1))
    torch.testing.assert_close(half.score_g, (whole.score_g + none.score_g) / 2)
    assert none.score_g < whole.score_g
