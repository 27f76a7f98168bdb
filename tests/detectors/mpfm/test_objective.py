import dataclasses
import itertools

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from mpfm_kedro.detectors.mpfm.heads import LocalEvidence
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
    return draw_batch(problem.model, problem.training, schedule, generator(), torch.device("cpu"))


def reached(model, loss):
    """Names of the parameters with a gradient."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


def layers(names):
    return {name.rsplit(".", 1)[0] for name in names}


@pytest.fixture
def terms(problem, batch, options, wake):
    """Every term of the awake model, computed anew for each backward pass."""
    model = wake(problem.model)

    def term(name, **changes):
        found, _ = losses(model, batch, dataclasses.replace(options, **changes), generator(1))
        return getattr(found, name)

    return model, term


@pytest.mark.parametrize("name", ["flow_normal", "flow_anomaly"])
def test_flow_losses_train_the_velocity_network_alone(terms, name):
    model, term = terms
    found = layers(reached(model, term(name)))
    assert FLOW - {"velocity.logit"} <= found <= FLOW


def test_flow_losses_leave_the_prototypes_alone_with_an_independent_draw_too(terms, problem, batch, options):
    model, _ = terms
    drawn = dataclasses.replace(batch, path=None)
    loss = sum(flow_losses(model, drawn, batch.label == 0, options, generator()))
    found = layers(reached(model, loss))
    assert FLOW - {"velocity.logit"} <= found <= FLOW


@pytest.mark.parametrize("name", ["mim", "score_g"])
def test_information_and_global_score_train_flow_and_prototypes(terms, name):
    model, term = terms
    found = reached(model, term(name))
    assert found >= {"prototypes.mean", "prototypes.logit"}
    assert layers(found) >= FLOW - {"velocity.logit"}
    own = {"global_score.slope", "global_score.offset"} if name == "score_g" else set()
    assert {item for item in found if not item.startswith(VELOCITY)} == {"prototypes.mean", "prototypes.logit"} | own


def test_residual_score_trains_the_flow_and_its_head(terms):
    model, term = terms
    found = reached(model, term("score_r"))
    assert layers(found) >= (FLOW - {"velocity.logit"}) | {"residual_score.linear"}
    assert not {item for item in found if item.startswith(("local", "normality", "global"))}


def test_residual_score_leaves_the_prototypes_alone(terms):
    model, term = terms
    assert not {item for item in reached(model, term("score_r")) if item.startswith("prototypes")}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("score_a", {"local_score.weight", "local_score.bias", "local_score.slope"}),
        ("score_n", {"normality_score.linear.weight", "normality_score.linear.bias"}),
    ],
)
def test_scores_on_features_train_their_heads_alone(terms, name, own):
    model, term = terms
    assert reached(model, term(name)) == own


def test_scale_and_modes_are_never_trained(terms, problem, options, batch):
    model, _ = terms
    found, _ = losses(model, batch, options, generator())
    found.total(options).backward()
    trained = {name for name, _ in model.named_parameters()}
    assert not {name for name in trained if "modes" in name or "scale" in name}
    assert all(not buffer.requires_grad and buffer.grad is None for buffer in model.buffers())


def test_total_is_the_weighted_sum(problem, batch, options, wake):
    found, _ = losses(wake(problem.model), batch, options, generator())
    plain = sum(found) - found.mim - found.penalty
    torch.testing.assert_close(found.total(options), plain + 0.1 * found.mim + 1.0 * found.penalty)
    weights = torch.cat([weight.flatten() for weight in problem.model.head_weights()])
    torch.testing.assert_close(found.penalty, 0.5 * weights.square().sum())


@pytest.mark.parametrize("scores", ["g", "an", "garn"])
def test_only_the_named_scores_are_trained(problem, batch, options, wake, scores):
    choice = dataclasses.replace(options, scores=scores)
    model = wake(problem.model)
    found, _ = losses(model, batch, choice, generator())
    left_out = sum(getattr(found, f"score_{name}") for name in "garn" if name not in scores)
    torch.testing.assert_close(found.total(choice), found.total(options) - left_out)


def test_label_two_counts_as_an_anomaly(problem, batch, options, wake):
    model = wake(problem.model)
    ones, twos = (
        losses(model, dataclasses.replace(batch, label=batch.label * factor), options, generator())[0]
        for factor in (1, 2)
    )
    torch.testing.assert_close(torch.stack(list(ones)), torch.stack(list(twos)))


@pytest.mark.parametrize("printed", [False, True])
def test_normality_is_trained_on_normals_unless_printed(problem, batch, options, wake, printed):
    model = wake(problem.model)
    choice = dataclasses.replace(options, printed_normality_target=printed)
    found, _ = losses(model, batch, choice, generator())
    anomalous = (batch.label != 0).float()
    target = anomalous if printed else 1 - anomalous
    torch.testing.assert_close(found.score_n, binary_cross_entropy_with_logits(model.normality_score(batch.z), target))


def test_a_step_on_the_normality_loss_makes_normals_more_normal(problem, batch, options):
    model = problem.model
    losses(model, batch, options, generator())[0].score_n.backward()
    with torch.no_grad():
        model.normality_score.linear.weight -= 0.1 * model.normality_score.linear.weight.grad
        score = model.normality_score(batch.z)
    assert score[batch.label == 0].mean() > score[batch.label != 0].mean()


def pushed(problem, batch, options, distance):
    """The push when anomalies end ``distance`` away from where the field sends them."""
    end = batch.path.end + distance * (batch.label != 0).float()[:, None]
    path = problem.model.modes.path(batch.z, end)
    return flow_losses(problem.model, dataclasses.replace(batch, path=path), batch.label == 0, options, generator())


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
        problem.model, batch, normal, dataclasses.replace(options, push_margin=push_margin), generator(5)
    )
    t = torch.rand(len(batch.z), 1, generator=generator(5))
    q = problem.model.velocity((1 - t) * batch.z + t * batch.path.end, t)
    log_prob = q.log_prob(batch.path.end - batch.z, 1.0) / batch.z.shape[1]
    torch.testing.assert_close(flow_normal, -log_prob[normal].mean())
    margin = log_prob[~normal] - log_prob[normal].mean() + push_margin
    torch.testing.assert_close(flow_anomaly, softplus(margin).mean())


def test_untrained_field_fits_the_coupled_normals_perfectly(problem, batch, options):
    flow_normal, _ = flow_losses(problem.model, batch, batch.label == 0, options, generator())
    perfect = 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(flow_normal, perfect, rtol=0, atol=1e-3)


def test_normals_alone_push_nothing(problem, options):
    rows = problem.training.normals
    z = problem.model.z(torch.from_numpy(rows.rows.pooled[:8]))
    evidence = LocalEvidence(*(part[:8] for part in rows.evidence))
    batch = Batch(z, None, Path(*(part[:8] for part in rows.path)), None, evidence, torch.zeros(8))
    found, _ = losses(problem.model, batch, options, generator())
    assert found.flow_anomaly.item() == 0
    assert all(value.isfinite() for value in found)


def test_information_counts_normals_only(problem, batch, options):
    psi = batch.start.psi + 7 * batch.label[:, None]
    moved = dataclasses.replace(batch, start=batch.start._replace(psi=psi))
    first, second = (losses(problem.model, b, options, generator())[1].mutual for b in (batch, moved))
    torch.testing.assert_close(first, second)


def test_printed_information_has_the_other_sign(terms):
    _, term = terms
    repaired, printed = term("mim"), term("mim", printed_mutual_information=True)
    assert repaired.item() < 0 < printed.item()


def test_push_moves_anomalies_and_not_the_normals_they_are_compared_with(problem, batch, options):
    z = batch.z.clone().requires_grad_()
    normal = batch.label == 0
    _, push = flow_losses(problem.model, dataclasses.replace(batch, z=z), normal, options, generator())
    push.backward()
    assert z.grad[normal].abs().max() == 0
    assert z.grad[~normal].abs().max() > 0


def test_pseudo_anomalies_count_by_their_weight(problem, batch, options, wake):
    model = wake(problem.model)
    without = dataclasses.replace(options, pseudo_weight=0.0)
    with torch.inference_mode():
        half, _ = losses(model, batch, dataclasses.replace(options, pseudo_weight=0.5), generator(1))
        whole, _ = losses(model, batch, options, generator(1))
        none, _ = losses(model, batch, without, generator(1))
    for name in ("score_g", "score_a", "score_r", "score_n"):
        expected = (getattr(whole, name) + getattr(none, name)) / 2
        torch.testing.assert_close(getattr(half, name), expected)
        assert getattr(none, name) < getattr(whole, name)
