"""What is learned from known anomalies, and what each head leaves out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.mpfm.closed_form import fit_closed_form
from mpfm_kedro.detectors.mpfm.learned import Rounds, fit, fit_heads, unpack_heads
from mpfm_kedro.detectors.mpfm.mode_fitting import FOLDS, folds

CPU = torch.device("cpu")
PARAMETERS = {
    "head_steps": 40,
    "head_members": 2,
    "head_top_shares": [0.1, 0.05],
    "normals_per_batch": 8,
    "anomalies_per_batch": 4,
    "normality_target": "repaired",
    "backbone": 0,
}


@pytest.fixture(scope="module")
def make_data(make_rows):
    def make(n=60, n_known=3, views=2, seed=0):
        rng = np.random.default_rng(seed)
        known = np.tile(rng.normal(size=(n_known, 8)) + 2, (views, 1))
        source = np.tile(np.arange(n_known), views)
        normals = make_rows(rng.normal(size=(n, 8)), seed=1)
        return TrainingData(normals, normals.take(np.arange(0)), make_rows(known, spot=6.0, seed=2, source=source))

    return make


@pytest.fixture(scope="module")
def problem(make_data):
    data = make_data()
    closed_forms, _ = fit_closed_form(data.normals, 1, 20, 10, 0.1, 200, 0, CPU)
    return data, closed_forms, fit(data, {"closed_form": closed_forms.pack({})}, PARAMETERS, 0, Context())


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 60), st.integers(1, FOLDS), st.integers(2, 12), st.integers(1, 4), st.integers(0, 50))
def test_every_known_anomaly_is_left_out_once_with_all_of_its_views(n, left_out, n_known, views, seed):
    fold, source = folds(n, seed), np.tile(np.arange(n_known), views)
    left_out = min(left_out, int(fold.max()) + 1)
    rounds = Rounds.plan(fold, left_out, source, seed)
    assert rounds.normals.shape == (len(rounds.anomalies), n)
    assert rounds.normals[-1].all() and rounds.anomalies[-1].all()
    missing = ~rounds.anomalies[:-1]
    np.testing.assert_array_equal(missing.sum(0), np.ones(len(source)))
    for number in range(len(missing)):
        np.testing.assert_array_equal(missing[number], np.isin(source, source[missing[number]]))
        np.testing.assert_array_equal(rounds.normals[number], fold != number % left_out)
    assert rounds.anomalies.any(1).all() and rounds.normals.any(1).all()
    assert set(fold[~rounds.normals[:-1].all(0)]) == set(range(left_out))


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 30), st.integers(1, FOLDS), st.integers(1, 5), st.integers(0, 50))
def test_a_single_anomaly_is_never_left_out(n, left_out, views, seed):
    fold = folds(n, seed)
    left_out = min(left_out, int(fold.max()) + 1)
    rounds = Rounds.plan(fold, left_out, np.zeros(views, dtype=int), seed)
    assert len(rounds.anomalies) == left_out + 1
    assert rounds.anomalies.all()


def test_stored_heads_score_alike(problem, make_data):
    data, closed_forms, artefact = problem
    rounds = Rounds.plan(closed_forms.fold, len(closed_forms.without), data.anomalies.source, 0)
    heads, history = fit_heads(data, closed_forms, rounds, PARAMETERS, 0, Context())
    again = unpack_heads(artefact, closed_forms.final.standardiser)
    new = make_data(n=20, seed=4).normals
    scores = heads.score(new, CPU)
    assert scores.shape == (20, len(rounds.normals), 2)
    np.testing.assert_array_equal(scores, again.score(new, CPU))
    np.testing.assert_array_equal(artefact.tensors["normals"], heads.score(data.normals, CPU))
    assert artefact.details["history"] == history
    assert [row["epoch"] for row in history] == list(range(1, 11))


def test_the_final_heads_are_the_last(problem, make_data):
    _, closed_forms, artefact = problem
    heads, new = unpack_heads(artefact, closed_forms.final.standardiser), make_data(n=20, seed=4).normals
    final = heads.head().score(new, CPU)
    assert final.shape == (20, 1, 2)
    np.testing.assert_allclose(final[:, 0], heads.score(new, CPU)[:, -1], rtol=1e-4, atol=1e-5)


def test_heads_find_new_anomalies(problem, make_data):
    _, closed_forms, artefact = problem
    new = make_data(n=60, n_known=60, views=1, seed=4)
    heads = unpack_heads(artefact, closed_forms.final.standardiser).head()
    scores = np.concatenate([heads.score(rows, CPU)[:, 0] for rows in (new.normals, new.anomalies)])
    label = np.repeat([0, 1], 60)
    assert roc_auc_score(label, scores[:, 0]) > 0.9
    assert roc_auc_score(label, scores[:, 1]) < 0.1  # normality


def test_printed_normality_has_the_other_sign(problem, make_data):
    data, closed_forms, artefact = problem
    printed = fit(
        data, {"closed_form": closed_forms.pack({})}, PARAMETERS | {"normality_target": "printed"}, 0, Context()
    )
    new = make_data(n=20, seed=4).normals
    one, other = (unpack_heads(each, closed_forms.final.standardiser).score(new, CPU) for each in (artefact, printed))
    np.testing.assert_allclose(other[..., 1], -one[..., 1])
    np.testing.assert_array_equal(other[..., 0], one[..., 0])


@pytest.mark.parametrize("n", [2, 5, 10])
@pytest.mark.parametrize("n_known", [1, 2, 3, 4, 5])
def test_few_normals_and_few_anomalies_are_enough(make_data, n, n_known):
    data = make_data(n, n_known)
    closed_forms, _ = fit_closed_form(data.normals, 4, 1, 10, 0.1, 200, 0, CPU)
    found = fit(data, {"closed_form": closed_forms.pack({})}, PARAMETERS, 0, Context())
    assert len(found.tensors["learns.anomalies"]) == 1 + max(min(n, 5), n_known if n_known > 1 else 0)
    assert found.tensors["normals"].isfinite().all()
