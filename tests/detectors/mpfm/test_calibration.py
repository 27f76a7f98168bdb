import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.mpfm.calibration import (
    MIN_NORMALS_OF_A_MODE,
    SIGNS,
    Calibration,
    calibrate,
    plain_sum,
    weights,
)


def scores(sizes, seed=0, shift=0.0):
    """Scores (n, 4) that differ in level and spread from mode to mode, and the modes."""
    rng = np.random.default_rng(seed)
    mode = np.repeat(np.arange(len(sizes)), sizes)
    level = np.array([1.0, -20.0, 300.0, 0.01])
    return level * (1 + mode[:, None] + (1 + mode[:, None]) * rng.normal(size=(len(mode), 4)) + shift), mode


def before_compression(calibration, parts, mode):
    return np.sinh(calibration.standardise(parts, mode))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(MIN_NORMALS_OF_A_MODE, 40), min_size=1, max_size=4), st.integers(0, 100))
def test_held_back_normals_of_every_mode_have_mean_zero_and_spread_one(sizes, seed):
    parts, mode = scores(sizes, seed)
    calibration = calibrate(parts, mode, *scores(sizes, seed + 1), n_modes=len(sizes))
    standardised = before_compression(calibration, parts, mode)
    for j in range(len(sizes)):
        np.testing.assert_allclose(standardised[mode == j].mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(standardised[mode == j].std(0), 1, atol=1e-6)


def test_compression_keeps_order_and_ordinary_scores():
    calibration = Calibration(np.zeros((4, 1)), np.ones((4, 1)), np.ones(4))
    x = np.linspace(-50, 50, 101)
    found = calibration.standardise(np.repeat(x[:, None], 4, axis=1), np.zeros(101, dtype=int))[:, 0]
    assert (np.diff(found) > 0).all()
    assert found[51] == pytest.approx(1, abs=0.2)
    assert found[-1] < 5


def test_modes_with_few_normals_fall_back_on_all():
    parts, mode = scores([30, MIN_NORMALS_OF_A_MODE - 1, 0])
    calibration = calibrate(parts, mode, *scores([5, 5, 5]), n_modes=3)
    for j in (1, 2):
        np.testing.assert_allclose(calibration.center[:, j], parts.mean(0))
        np.testing.assert_allclose(calibration.spread[:, j], parts.std(0))
    np.testing.assert_allclose(calibration.center[:, 0], parts[mode == 0].mean(0))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4))
def test_likelihoods_count_in_full_and_heads_by_a_quarter_of_their_evidence(evidence):
    _, local, residual, normality = evidence
    expected = [1, local > 0, 0.25 * max(residual, 0), 0.25 * max(normality, 0)]
    np.testing.assert_allclose(weights(np.array(evidence)), expected)


def test_evidence_is_twice_the_auc_of_pseudo_anomalies_less_one():
    rng = np.random.default_rng(0)
    normals, pseudo = rng.normal(size=(60, 4)), rng.normal(size=(90, 4)) + np.array([0.0, 1.0, 0.5, -0.7])
    zeros = np.zeros(60, dtype=int), np.zeros(90, dtype=int)
    calibration = calibrate(normals, zeros[0], pseudo, zeros[1], n_modes=1)
    label = np.repeat([0, 1], [60, 90])
    for part, sign in zip((2, 3), SIGNS[2:], strict=True):
        auc = roc_auc_score(label, sign * np.concatenate([normals[:, part], pseudo[:, part]]))
        assert calibration.weight[part] == pytest.approx(0.25 * (2 * auc - 1))


def test_a_head_that_is_wrong_about_pseudo_anomalies_gets_no_weight():
    normals, mode = scores([40])
    pseudo = normals - 5 * SIGNS * normals.std(0)
    np.testing.assert_array_equal(calibrate(normals, mode, pseudo, mode, 1).weight, [1, 0, 0, 0])


@pytest.mark.parametrize("part", [1, 2, 3])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e3])
def test_a_dead_head_gets_no_weight_and_makes_no_nan(part, value):
    (normals, mode), (pseudo, pseudo_mode) = scores([20, 20]), scores([15, 15], seed=1, shift=2.0)
    normals[:, part] = pseudo[:, part] = value
    calibration = calibrate(normals, mode, pseudo, pseudo_mode, n_modes=2)
    assert calibration.weight[part] == 0
    assert np.isfinite(calibration.fuse(pseudo, pseudo_mode)).all()


def test_without_pseudo_anomalies_both_likelihoods_count():
    normals, mode = scores([20])
    calibration = calibrate(normals, mode, np.empty((0, 4)), np.empty(0, dtype=int), n_modes=1)
    np.testing.assert_array_equal(calibration.weight, [1, 1, 0, 0])


def test_one_held_back_normal_is_enough_to_go_on():
    normals, mode = scores([1])
    calibration = calibrate(normals, mode, *scores([3], seed=1), n_modes=1)
    assert np.isfinite(calibration.fuse(normals, mode)).all()


def test_fused_score_is_the_weighted_sum_with_normality_subtracted():
    calibration = Calibration(np.full((4, 1), 1.0), np.full((4, 1), 2.0), np.array([1.0, 0.2, 0.1, 0.05]))
    parts = np.array([[3.0, 2.0, 1.0, 5.0]])
    g, a, r, n = np.arcsinh((parts[0] - 1) / 2)
    assert calibration.fuse(parts, np.array([0])).item() == pytest.approx(g + 0.2 * a + 0.1 * r - 0.05 * n)


def test_printed_sum_is_of_the_raw_scores():
    parts, mode = scores([4, 5])
    g, a, r, n = parts.T
    np.testing.assert_allclose(plain_sum(2).fuse(parts, mode), g + a + r - n)
