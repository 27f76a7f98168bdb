from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.mpfm.calibration import Evidence, SoftCalibration
from mpfm_kedro.detectors.mpfm.closed_form import CrossFit
from mpfm_kedro.detectors.mpfm.detector import load, load_calibrations, load_fold_models
from mpfm_kedro.detectors.mpfm.rounds import Rounds
from mpfm_kedro.detectors.mpfm.stages import anomaly_evidence, normal_evidence
from mpfm_kedro.parameters import RepairParameters
from small_mpfm import CPU, PRINTED, fit, make_data, specify


def auc(pieces, normals, anomalies):
    scores = [load(pieces, CPU).score_samples(rows).score for rows in (normals, anomalies)]
    return roc_auc_score(np.repeat([0, 1], [len(normals), len(anomalies)]), np.concatenate(scores))


@pytest.mark.parametrize("n_known", [0, 1, 2, 3, 4, 5, 12])
def test_any_number_of_known_anomalies_makes_a_detector(n_known):
    data, normals, anomalies = make_data(n_known=n_known)
    pieces = fit(specify(trained=n_known > 0), data)
    assert auc(pieces, normals, anomalies) > 0.9
    weight = load(pieces, CPU).first.calibration.weight
    assert (weight >= 0).all() and (weight.sum(0) > 0).all()
    left_out = load_fold_models(pieces, data, 0, CPU)
    for kind, number in (("normals", 60), ("anomalies", 2 * n_known if n_known > 1 else 0)):
        found = np.concatenate([getattr(each, kind) for each in left_out])
        np.testing.assert_array_equal(np.sort(found), np.arange(number))
        for each in left_out:
            rows = getattr(data, kind).take(getattr(each, kind))
            assert np.isfinite(each.detector.score_samples(rows).score).all()


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10])
@pytest.mark.parametrize("n_known", [0, 1, 3])
def test_few_normals_make_a_detector(n, n_known):
    data, normals, anomalies = make_data(n=n, n_known=n_known)
    assert auc(fit(specify(trained=n_known > 0), data), normals, anomalies) > 0.5


@pytest.mark.parametrize("repair", [*RepairParameters.model_fields, "all"])
@pytest.mark.parametrize("n_known", [1, 3])
def test_every_printed_form_makes_a_detector(repair, n_known):
    data, normals, anomalies = make_data(n_known=n_known)
    changes = PRINTED if repair == "all" else {repair: "printed"}
    changes = changes | ({"coupling": "printed"} if repair == "transport_start" else {})
    assert auc(fit(specify(**changes), data), normals, anomalies) > 0.6


def test_an_anomaly_that_a_round_leaves_out_does_not_change_it():
    data, *_ = make_data(n_known=3)
    moved = data.anomalies.pooled + 50 * (data.anomalies.source == 0)[:, None].astype(np.float32)
    pieces = fit(specify(), data)
    changed = fit(specify(), replace(data, anomalies=replace(data.anomalies, pooled=moved)))["training"].tensors
    rounds = Rounds.of_folds(pieces["prototypes"].tensors["fold"].numpy(), data, 0)
    (r,) = np.flatnonzero(~rounds.anomalies[:, 0])
    for name, value in pieces["training"].tensors.items():
        torch.testing.assert_close(value[r], changed[name][r], rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.equal(pieces["training"].tensors["m_n.weight"][-1], changed["m_n.weight"][-1])


def raw_scores(branch, rows):
    z = branch.standardiser.z_of(rows)
    x, p, mode = branch.enter(z)
    squares = branch.mean_squares(rows, mode)
    return branch.raw_scores(z, x, p, squares, rows.map_batch())[0]


EVIDENCE_FORMS = [{}, {"residual": "printed"}, {"likelihood": "printed"}, PRINTED | {"transport_steps": 3}]


@pytest.mark.parametrize("forms", EVIDENCE_FORMS, ids=["repaired", "residual", "likelihood", "printed"])
def test_evidence_of_normals_is_what_the_fold_models_say_and_calibrates_those_that_learn_from_them(forms):
    data, *_ = make_data(n_known=4)
    pieces = fit(specify(**forms, learning_rate=0.3), data)
    fold_models = load_fold_models(pieces, data, 0, CPU)
    final = load(pieces, CPU)
    branches = [model.first for model in (*(fold.detector for fold in fold_models), final)]
    cross_fit = CrossFit.restore(pieces, data, 0, 0, CPU)
    evidence = normal_evidence(cross_fit)
    for fold in fold_models:
        expected = raw_scores(fold.detector.first, data.normals.take(fold.normals))
        torch.testing.assert_close(evidence.scores[fold.normals], expected, rtol=1e-3, atol=1e-3)
    if "fusion" not in forms:
        for branch, fold in zip(branches, [*range(len(fold_models)), -1], strict=True):
            learned = Evidence(*(value[torch.from_numpy(cross_fit.held_out.fold != fold)] for value in evidence))
            expected, _ = SoftCalibration.fit(learned, len(branch.groups.mode_center))
            for name, value in branch.calibration.state_dict().items():
                if name != "weight":
                    torch.testing.assert_close(value, getattr(expected, name), msg=name)


@pytest.mark.parametrize("n_known", [0, 1, 2, 4])
def test_each_anomaly_is_evidence_once_by_a_round_that_has_not_seen_it(make_problem, n_known):
    problem = make_problem(n_known=n_known)
    models = problem.models
    for r, model in enumerate(models):
        model.trained = problem.of_round(r)
    found = anomaly_evidence(problem.cross_fit)
    left_out = n_known if n_known > 1 else 0
    assert float(found.weight.sum()) == pytest.approx(left_out) and len(found.scores) == 2 * left_out
    for row, (r, image) in enumerate(zip(*np.nonzero(~problem.rounds.anomalies), strict=True)):
        expected = raw_scores(models[r], problem.data.anomalies.take(np.array([image])))[0]
        torch.testing.assert_close(found.scores[row], expected, rtol=1e-3, atol=1e-3)


def test_images_of_one_item_count_as_one_anomaly(make_problem):
    problem = make_problem(n_known=4)
    items = np.append(np.arange(len(problem.data.normals)), [-1, -1, -1, -2])
    data = replace(problem.data, items=items)
    for r, model in enumerate(problem.models):
        model.trained = problem.of_round(r)
    rounds = Rounds.of_folds(problem.held_out.fold, data, 0)
    weight = anomaly_evidence(problem.cross_fit._replace(data=data, rounds=rounds)).weight
    assert sorted(weight.tolist()) == pytest.approx([1 / 6] * 6 + [1 / 2] * 2)
    one_item = replace(data, items=np.append(items[:-4], [-1] * 4))
    fits = [fit(specify(), known) for known in (one_item, make_data(n_known=1)[0])]
    weights = [load_calibrations(own["calibration"])[0].part_weights for own in fits]
    shares = [weight[1:3, 0] / weight.sum() for weight in weights]
    torch.testing.assert_close(*shares)  # the prior of one known anomaly, of which nothing could be left out


@pytest.mark.parametrize("parts", ["g", "an", "gar"])
@pytest.mark.parametrize("step_0", [False, True])
@pytest.mark.parametrize("fusion", ["repaired", "printed"])
def test_the_parts_that_are_named_count_and_no_others(parts, step_0, fusion):
    data, normals, _ = make_data(n_known=4)
    found = load(fit(specify(scores=list(parts), step_0=step_0, fusion=fusion), data), CPU).inspect(normals)
    assert (found.contributions.abs().sum(0) > 0).tolist() == [part in parts for part in "garn"]
