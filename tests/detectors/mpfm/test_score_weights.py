import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from mpfm_kedro.detectors.mpfm.calibration import (
    MEMBERS,
    PRIOR_SPREAD,
    SCORES,
    STEP_0,
    WEIGHT_NORM,
    Calibrated,
    counted_in_mode,
    fit_weights,
    prior_weights,
    stacked_weights,
)

S = len(SCORES)


def surprises(n, seed=0, shift=0.0):
    """t of some images: exponential, and more by a shift."""
    return torch.from_numpy(np.random.default_rng(seed).exponential(size=(n, S)) + shift).float()


def calibrated(anomalies, modes, n_modes=1, views=1, seed=0):
    """Scores of normals and of known anomalies in these modes, each with its views."""
    mode = torch.tensor(modes, dtype=torch.long).repeat(views)
    return Calibrated(surprises(200, seed), anomalies, mode, torch.full((len(mode),), 1 / views), n_modes)


def fitted(anomalies, modes, n_modes=1, n_known=None, **named):
    n_known = len(modes) if n_known is None else n_known
    (weight,) = fit_weights([calibrated(anomalies, modes, n_modes)], n_known, **named)
    return weight.double().numpy()


def scaled(weight):
    """Weights of one norm."""
    return WEIGHT_NORM * weight / np.linalg.norm([weight[own].sum() for own in MEMBERS])


@pytest.mark.parametrize("n_known", [0, 1])
def test_without_evidence_the_prior_rules(n_known):
    np.testing.assert_allclose(fitted(surprises(0), [], 1, n_known)[:, 0], scaled(prior_weights(n_known)), rtol=1e-5)


def test_what_is_learned_counts_the_more_the_more_anomalies_are_known():
    prior = np.stack([prior_weights(n) for n in (0, 1, 3, 10, 1000)])
    assert (np.diff(prior[:, ~STEP_0], axis=0) > 0).all() and (np.diff(prior[:, STEP_0], axis=0) < 0).all()
    assert (prior[0, ~STEP_0] == 0).all() and (prior[0, STEP_0] > 0).all()
    alone = prior_weights(5, np.array([name not in ("g", "r") for name in SCORES]))
    assert (alone[STEP_0] > prior_weights(5)[STEP_0]).all()  # step 0 has the weight of both


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 12), st.integers(1, 3), st.integers(-3, 6), st.integers(0, 1000), st.sets(st.integers(0, S - 1)))
def test_weights_are_never_negative_and_have_one_norm(n_known, n_modes, shift, seed, left):
    counted = np.array([score not in left for score in range(S)])
    counted[0] |= not counted.any()
    modes = np.random.default_rng(seed).integers(n_modes, size=n_known).tolist()
    weight = fitted(surprises(n_known, seed + 1, shift), modes, n_modes, counted=counted)
    assert np.isfinite(weight).all() and (weight >= 0).all() and (weight[~counted] == 0).all()
    if prior_weights(n_known, counted)[counted].any():
        for own in weight.T:
            np.testing.assert_allclose(own, scaled(own), rtol=1e-4)


@pytest.mark.parametrize("score", range(S))
def test_a_score_that_tells_anomalies_apart_gains_weight_in_their_mode(score):
    anomalies, modes = surprises(20, seed=1), [0] * 10 + [1] * 10
    before = fitted(anomalies, modes, 2)[score]
    anomalies[:10, score] += 6
    anomalies[10:, (score + 2) % S] += 6
    after = fitted(anomalies, modes, 2)[score]
    assert after[0] > before[0] + 0.1 and after[0] > after[1]


def test_stacked_weights_are_the_minimum_of_their_loss_and_views_count_together():
    normals, anomalies = surprises(100).double().numpy(), surprises(8, 1, 1.0).double().numpy()
    prior = prior_weights(8)
    x, sign = np.concatenate([normals, anomalies]), np.repeat([1.0, -1.0], [100, 8])
    counts = np.repeat([8 / 100, 1.0], [100, 8])

    def loss(weight):
        with_bias = minimize_scalar(lambda bias: counts @ np.logaddexp(0, sign * (x @ weight + bias))).fun
        return with_bias + 0.5 * np.square((weight - prior) / PRIOR_SPREAD).sum()

    found = stacked_weights(normals, anomalies, np.ones(8), prior)
    for other in np.random.default_rng(0).normal(found, 0.1, size=(50, S)):
        assert loss(found) < loss(np.maximum(other, 0)) + 1e-6
    views = stacked_weights(normals, np.repeat(anomalies, 9, axis=0), np.full(72, 1 / 9), prior)
    np.testing.assert_allclose(views, found, atol=1e-3)


@pytest.mark.parametrize("modes", [[0] * 10, [0] * 7 + [1] * 3, [0, 0, 2, 2, 2], [1]])
def test_known_anomalies_of_other_modes_count_together_as_one(modes):
    found = calibrated(None, modes, views=4)
    for j in range(3):
        own, others = modes.count(j), len(modes) - modes.count(j)
        count, counted = counted_in_mode(found, j, len(modes))
        here = found.mode.numpy() == j
        assert count[here].sum() == pytest.approx(own) and count[~here].sum() == pytest.approx(min(1, others))
        assert counted == pytest.approx(own + min(1, others))
    assert counted_in_mode(calibrated(None, []), 1, 1)[1] == 1  # the only one counts in every mode


def test_backbones_share_one_norm_and_the_better_one_counts_more():
    backbones = [calibrated(surprises(10, seed + 2, 5.0 * seed), [0] * 10, seed=seed) for seed in (0, 1)]
    first, second = fit_weights(backbones, 10)
    parts = torch.stack([torch.stack([w[own].sum() for own in MEMBERS]) for w in (first, second)])
    assert second.sum() > first.sum() and float(parts.norm()) == pytest.approx(WEIGHT_NORM, rel=1e-4)
