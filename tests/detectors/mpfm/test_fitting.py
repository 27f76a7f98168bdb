import pytest
import torch


def test_modules_start_as_the_closed_form(make_problem):
    problem = make_problem()
    g = torch.empty(60)
    for model, normals, x, p in problem.held_out.enter(problem.models):
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
