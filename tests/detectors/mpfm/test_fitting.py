import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.mpfm.detector import load_fold_models
from mpfm_kedro.detectors.mpfm.fitting import anomaly_evidence, normal_evidence, step_0_scores
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.rounds import Rounds
from mpfm_kedro.detectors.mpfm.storage import unpack_forms, unpack_initialised, unpack_modules
from small_mpfm import CPU, PRINTED, fit, make_data, specify

FORMS = [{}, {"residual": "printed"}, {"likelihood": "printed"}, PRINTED | {"transport_steps": 3}]


def raw_scores(branch, rows):
    z = branch.closed_form.standardiser.z_of(rows)
    return branch.raw_scores(z, rows.map_batch(), branch.closed_form.enter(z)).image


@pytest.mark.parametrize("forms", FORMS, ids=["repaired", "residual", "likelihood", "printed"])
def test_evidence_of_normals_is_what_the_detector_without_them_says(forms):
    data, *_ = make_data(n_known=4)
    pieces = fit(specify(**forms, learning_rate=0.3), data)
    initialised, fold = unpack_initialised(pieces["prototypes"])
    rounds = Rounds.of_folds(fold, data.anomalies.source, 0)
    trained = unpack_modules(pieces["training"]), rounds, unpack_forms(pieces["training"])
    found = normal_evidence(data.normals, initialised, *trained)
    for each in load_fold_models(pieces, data.anomalies.source, 0, CPU):
        expected = raw_scores(each.detector.first, data.normals.take(each.normals))
        torch.testing.assert_close(found.scores[each.normals], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_known", [0, 1, 2, 4])
def test_each_anomaly_is_evidence_once_by_a_round_that_has_not_seen_it(make_problem, n_known):
    problem = make_problem(n_known=n_known)
    closed_forms = enumerate(problem.initialised.closed_forms)
    models = [MPFM(each, problem.modules.of_round(r), None, 0.2) for r, each in closed_forms]
    found = anomaly_evidence(problem.data.anomalies, models, problem.rounds)
    left_out = n_known if n_known > 1 else 0
    assert float(found.count.sum()) == pytest.approx(left_out) and len(found.scores) == 2 * left_out
    for place, (r, image) in enumerate(zip(*np.nonzero(~problem.rounds.anomalies), strict=True)):
        expected = raw_scores(models[r], problem.data.anomalies.take(np.array([image])))[0]
        torch.testing.assert_close(found.scores[place], expected, rtol=1e-3, atol=1e-3)


def test_modules_start_as_the_closed_form(make_problem):
    problem = make_problem()
    g = step_0_scores(problem.initialised, problem.rounds.fold)
    for r, closed_form in enumerate(problem.initialised.closed_forms):
        entered, modules = closed_form.enter(problem.z), problem.modules.of_round(r)
        psi = modules.flow.psi(entered.x[None], entered.p[None])
        torch.testing.assert_close(modules.flow.score(psi)[0], closed_form.score_of(entered.x, entered.p))
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
