from dataclasses import replace

import pytest
import torch

from mpfm_kedro.detectors.mpfm.training import clip_by_round, train
from small_mpfm import Memory


def trained(problem, training=None, checkpoint=None, **changes):
    """The tensors of all modules and the history after training."""
    parameters = problem.parameters.model_copy(update=changes)
    history = train(problem.modules, training or problem.training, parameters, 3, checkpoint)
    return problem.modules.state_dict(), history


def equal(one, other):
    return {name for name, value in one.items() if torch.equal(value, other[name])}


@pytest.mark.parametrize("printed", [False, True])
def test_the_same_seed_gives_the_same_bits(make_problem, printed):
    forms = {"transport_start": "printed", "coupling": "printed"} if printed else {}
    (first, history), (second, again) = (trained(make_problem(**forms)) for _ in range(2))
    assert equal(first, second) == set(first) and history == again
    problem = make_problem(**forms)
    assert not equal(first, problem.modules.state_dict()) & {name for name, _ in problem.modules.named_parameters()}


def test_training_lowers_the_loss_and_tells_of_each_epoch(make_problem):
    _, history = trained(make_problem(), epochs=12)
    assert [row["epoch"] for row in history] == list(range(1, 13))
    assert all(history[-1][name] < history[0][name] for name in ("total", "score_a"))
    assert all(0 <= row["information_share"] <= 1 and 1 <= row["used_prototypes"] <= 4 for row in history)


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_an_interrupted_training_resumes_to_the_same_bits(make_problem, stopped):
    memory, length = Memory(), {"epochs": 3, "head_epochs": 2}
    whole, history = trained(make_problem(), checkpoint=memory, **length)
    resumed, again = trained(make_problem(), checkpoint=Memory(memory.states[:stopped]), **length)
    assert equal(whole, resumed) == set(whole) and again == history and len(memory.states) == 3


@pytest.mark.parametrize("kind", ["normal", "anomaly"])
def test_an_image_that_a_round_leaves_out_does_not_change_it(make_problem, kind):
    problem, other = make_problem(), make_problem()
    learns, data = problem.training.learns, other.training
    r, image = (~(learns[:, :60] if kind == "normal" else learns[:, 60:])).nonzero()[0].tolist()
    place, read = image + 60 * (kind == "anomaly"), data.patches
    changed = replace(data, patches=lambda index: read(index) + 5.0 * (index == place)[:, None, None])
    changed.z[place] += 5
    changed.squares[:, place] += 5
    if kind == "normal":
        changed.offset[image] += 5
    else:
        changed.x[:, image] += 5
    (before, _), (after, _) = trained(problem, epochs=4), trained(other, changed, epochs=4)
    for name, _ in problem.modules.named_parameters():
        torch.testing.assert_close(before[name][r], after[name][r], rtol=1e-5, atol=1e-6, msg=name)
        assert not torch.equal(before[name][-1], after[name][-1]), name


def test_gradients_are_clipped_in_each_round_alone():
    one, other = torch.zeros(3, 4, 2), torch.zeros(3)
    one.grad, other.grad = torch.randn(3, 4, 2), torch.tensor([0.1, 50.0, 0.0])
    one.grad[0] *= 0.1 / one.grad[0].norm()
    one.grad[2] = 0
    before = one.grad.clone()
    clip_by_round([one, other, torch.zeros(3)], 1.0)
    norm = torch.cat([one.grad.flatten(1), other.grad[:, None]], 1).norm(dim=1)
    torch.testing.assert_close(norm, torch.tensor([2**0.5 * 0.1, 1.0, 0.0]))
    assert torch.equal(one.grad[0], before[0])
    clip_by_round([torch.zeros(3)], 1.0)  # nothing has a gradient


def test_the_head_is_kept_after_its_epochs_and_the_rest_is_not(make_problem):
    (early, _), (late, history) = (trained(make_problem(), epochs=epochs, head_epochs=1) for epochs in (1, 3))
    same = equal(early, late)
    assert {"m_a.weight", "m_a.bias"} <= same and not {"m_n.weight", "flow.prototypes.mean"} & same
    assert len({row["score_a"] for row in history}) == 1


def test_modules_start_as_the_closed_form(make_problem):
    problem = make_problem()
    g = torch.empty(60)
    for model, normals, x, p in problem.cross_fit.held_out_normals():
        g[normals] = model.step_0(x, p)
    for r, model in enumerate(problem.models):
        (x, p, _), modules = model.enter(problem.z), problem.of_round(r)
        torch.testing.assert_close(modules.flow.score(modules.flow.psi(x[None], p[None]))[0], model.step_0(x, p))
        learned, known = (torch.from_numpy(own[r]) for own in (problem.rounds.normals, problem.rounds.anomalies))
        logit = modules.m_g(g[None, learned])
        assert float(logit.mean()) == pytest.approx(0, abs=1e-4) and float(logit.std()) == pytest.approx(1, abs=0.05)
        normality = modules.m_n(problem.z)[0]
        assert normality[:60][learned].mean() > normality[60:][known].mean()


def test_normality_starts_from_what_each_round_may_know(make_problem):
    problem, moved = make_problem(), make_problem().z
    moved[60:][~problem.rounds.anomalies[0]] += 100
    before, after = problem.modules.m_n.weight, problem.start(moved).m_n.weight
    assert torch.equal(before[0], after[0]) and not torch.equal(before[-1], after[-1])
    assert torch.equal(make_problem(normality_target="printed").modules.m_n.weight, -before)
    assert make_problem(n_known=0).modules.m_n.weight.abs().max() == 0


def test_a_batch_is_in_each_round_what_its_closed_form_says(make_problem):
    problem = make_problem()
    batch = problem.training.batch(torch.arange(12), torch.arange(6))
    for r, model in enumerate(problem.models):
        (x, p, _), held_out = model.enter(problem.z), torch.from_numpy(problem.held_out.fold[:12] == r)
        torch.testing.assert_close(batch.x[r, 12:], x[60:])
        torch.testing.assert_close(batch.p[r, 12:], p[60:])
        torch.testing.assert_close(batch.x[r, :12][held_out], x[:12][held_out], rtol=1e-3, atol=1e-4)
    expected = problem.models[-1].standardiser.patches(problem.data.normals.map_batch(slice(12)))
    torch.testing.assert_close(batch.v[:12], expected, rtol=1e-2, atol=1e-2)  # half precision
