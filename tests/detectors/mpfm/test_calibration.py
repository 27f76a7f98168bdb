import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.mpfm.calibration import (
    FAR,
    GROUP_PRIOR,
    MEMBERS,
    MIN_NORMALS_OF_A_MODE,
    SCORES,
    Calibrated,
    Evidence,
    SoftCalibration,
    fit_tails,
    fit_weights,
    surprise,
)

S = len(SCORES)


def evidence(sizes, n_groups=1, seed=0):
    """Scores that differ in level and spread from mode to mode, in groups one after the other."""
    mode = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    scores = (1 + mode[:, None]) * (torch.randn(len(mode), S, generator=torch.Generator().manual_seed(seed)) + 5)
    return Evidence(scores, torch.eye(n_groups)[torch.arange(len(mode)) % n_groups], mode, torch.ones(len(mode)))


def two_kinds(n):
    """Evidence in two groups of n, the second with higher scores."""
    normals = evidence([2 * n], n_groups=2)
    normals.scores[1::2] = 3 * normals.scores[1::2] + 9
    return normals


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(MIN_NORMALS_OF_A_MODE, 40), min_size=1, max_size=3), st.integers(0, 1000))
def test_with_one_group_a_score_is_standardised_within_its_mode(sizes, seed):
    normals = evidence(sizes, seed=seed)
    line = {"knot": torch.full((S, 1), -1e3), "bend": torch.full((S, 1), 1e-3)}  # shows what enters the tails
    line = SoftCalibration(**SoftCalibration.fit(normals, len(sizes))[0].state_dict() | line)
    found = (line(normals.scores, normals.p, normals.mode) - 1) * 1e3
    for j in range(len(sizes)):
        own = normals.scores[normals.mode == j]
        plain = (own - own.mean(0)) / own.std(0, correction=0)
        torch.testing.assert_close(found[normals.mode == j], plain, rtol=0, atol=0.02)


@pytest.mark.parametrize("n", [4, 40, 4000])
def test_a_group_is_drawn_to_all_normals_by_kappa(n):
    normals = two_kinds(n)
    calibration, _ = SoftCalibration.fit(normals, 1)
    s = (normals.scores - normals.scores.mean(0)) / normals.scores.std(0, correction=0)
    for k in range(2):
        mean = s[k::2].sum(0) / (n + GROUP_PRIOR)
        variance = ((s[k::2] - mean).square().sum(0) + GROUP_PRIOR) / (n + GROUP_PRIOR)
        torch.testing.assert_close(calibration.group_mean[:, k], mean, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(calibration.group_variance[:, k], variance, rtol=1e-3, atol=1e-4)


def test_modes_with_few_normals_fall_back_on_all_and_constant_scores_say_nothing():
    normals = evidence([30, MIN_NORMALS_OF_A_MODE - 1, 0])
    normals.scores[:, 2] = 0
    calibration, held_out = SoftCalibration.fit(normals, 3)
    torch.testing.assert_close(calibration.center[:, 1:], normals.scores.mean(0)[:, None].expand(-1, 2))
    torch.testing.assert_close(calibration.center[:, 0], normals.scores[:30].mean(0))
    assert held_out[:, 2].abs().max() == 0 == calibration(normals.scores, normals.p, normals.mode)[:, 2].abs().max()


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 60), st.integers(1, 5), st.integers(0, 1000))
def test_t_grows_with_the_score_and_stays_finite(n, n_groups, seed):
    normals = evidence([n], n_groups, seed)
    calibration, held_out = SoftCalibration.fit(normals, 1)
    line = torch.linspace(-100, 1000, 200)[:, None].expand(-1, S)
    t = calibration(line, normals.p[:1].expand(200, -1), torch.zeros(200, dtype=torch.long))
    assert (t.diff(dim=0) >= -1e-5).all() and (t >= 0).all() and t.isfinite().all()
    assert t[-1].min() > t[0].max() and held_out.isfinite().all()


@pytest.mark.parametrize("n", [300, 20_000])
def test_t_of_new_normals_is_exponential_whatever_the_score_is(n):
    draw = torch.distributions.Exponential(1.0).sample
    shapes = (lambda x: x, lambda x: 7 * x - 3, torch.sqrt, torch.log1p, lambda x: x**1.3, lambda x: x**1.6)
    knot, bend = fit_tails(torch.stack([shape(draw((n,))) for shape in shapes], 1))
    t = surprise(torch.stack([shape(draw((20_000,))) for shape in shapes], 1), knot, bend)
    torch.testing.assert_close(t[:, :4].mean(0), torch.ones(4), rtol=0, atol=0.15 if n < 1000 else 0.06)
    for level in (0.5, 0.1, 0.03):
        share = (t > -torch.tensor(level).log()).float().mean(0)
        torch.testing.assert_close(share, torch.full((6,), level), rtol=0.5 if n < 1000 else 0.2, atol=0)


def test_far_beyond_all_normals_t_grows_by_its_logarithm():
    line = torch.linspace(0, 100 * FAR, 2001)
    t = surprise(line[:, None], torch.zeros(1, 1), torch.ones(1, 1))[:, 0]
    torch.testing.assert_close(t[line < FAR], line[line < FAR])
    assert (t.diff() > 0).all() and t[-1] < 10 * FAR and t.diff().max() <= line.diff().max() + 1e-4  # no jump


def test_t_of_a_normal_is_not_fitted_to_itself():
    normals = evidence([60], n_groups=20)  # three normals in each group
    normals.scores[0] += 20
    calibration, held_out = SoftCalibration.fit(normals, 1)
    assert (held_out[0] > calibration(normals.scores, normals.p, normals.mode)[0] + 0.1).all()


def test_parts_and_contributions_are_weighted_and_positions_are_calibrated_as_images():
    normals = evidence([20, 20], n_groups=3)
    calibration, _ = SoftCalibration.fit(normals, 2)
    calibration.weight.copy_(torch.rand(S, 2) + 0.1)
    t = calibration(normals.scores, normals.p, normals.mode)
    positions = calibration(normals.scores[:, None].expand(-1, 7, -1), normals.p, normals.mode)
    torch.testing.assert_close(positions, t[:, None].expand(-1, 7, -1))
    weight = calibration.weight.T[normals.mode]
    added = torch.stack([(t * weight)[:, own].sum(1) for own in MEMBERS], 1)
    torch.testing.assert_close(calibration.contributions(t, normals.mode), added)
    torch.testing.assert_close(calibration.contributions(positions, normals.mode)[:, 3], added)
    whole = torch.stack([weight[:, own].sum(1) for own in MEMBERS], 1)
    expected = added / whole * torch.tensor([1.0, 1.0, 1.0, -1.0])  # S_n is a normality
    torch.testing.assert_close(calibration.parts(t, normals.mode), expected)


def one_mode(shift, correlation, n, seed):
    """n images whose S_g, S_a, S_r and S_n are normal around their shift; S_r is correlated with S_g."""
    x = np.random.default_rng(seed).normal(size=(n, 4))
    x[:, 2] = correlation * x[:, 0] + (1 - correlation**2) ** 0.5 * x[:, 2]
    scores = torch.from_numpy(x + shift)[:, [0, 0, 1, 2, 2, 3]].float()
    return Evidence(scores, torch.ones(n, 1), torch.zeros(n, dtype=torch.long), torch.ones(n))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("shift", "correlation"),
    [*[(6 * np.eye(4)[part], 0) for part in range(4)], (np.ones(4), 0), (np.ones(4), 0.9)],
    ids=["only S_g", "only S_a", "only S_r", "only S_n", "all alike", "two correlated"],
)
def test_with_ten_known_anomalies_the_sum_is_not_behind_its_best_part(shift, correlation, seed):
    normals, known = one_mode(np.zeros(4), correlation, 200, seed), one_mode(shift, correlation, 10, seed + 100)
    calibration, t = SoftCalibration.fit(normals, 1)
    (weight,) = fit_weights([Calibrated(t, calibration(*known[:3]), known.mode, known.weight, 1)], 10)
    calibration.weight = weight
    new = one_mode(np.zeros(4), correlation, 2000, seed + 200), one_mode(shift, correlation, 2000, seed + 300)
    scores = [calibration.contributions(calibration(*images[:3]), images.mode).sum(1) for images in new]
    label = np.repeat([0, 1], 2000)
    best = max(roc_auc_score(label, torch.cat([images.scores[:, s] for images in new])) for s in range(S))
    assert roc_auc_score(label, torch.cat(scores)) >= best - 0.005
