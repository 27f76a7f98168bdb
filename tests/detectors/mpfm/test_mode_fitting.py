import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from mpfm_kedro.detectors.mpfm.mode_fitting import (
    SHRINKAGES,
    Spectrum,
    fit_modes,
    folds,
    modes_without_fold,
    stability,
)


def clusters(sizes, d=20, distance=8.0, seed=0):
    """Samples of Gaussian groups, mixed, and the group of each; another seed gives others of the same groups."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    mean = distance * np.eye(d)[: len(sizes)]
    shape = np.stack([(np.linalg.qr(fixed.normal(size=(d, d)))[0] * np.geomspace(1.5, 0.1, d)).T for _ in sizes])
    return mean[label] + np.einsum("nd,nde->ne", rng.normal(size=(len(label), d)), shape[label]), label


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 30), st.integers(2, 30), st.integers(0, 1000))
def test_spectrum_is_that_of_the_covariance_with_fewer_or_more_samples_than_dimensions(n, d, seed):
    z = np.random.default_rng(seed).normal(size=(n, d)) * np.geomspace(2, 0.3, d) + 1
    spectrum = Spectrum.of(z)
    covariance = (spectrum.basis * spectrum.variance) @ spectrum.basis.T
    np.testing.assert_allclose(covariance, np.cov(z.T, bias=True), atol=1e-9)
    np.testing.assert_allclose(spectrum.basis.T @ spectrum.basis, np.eye(spectrum.basis.shape[1]), atol=1e-6)
    np.testing.assert_allclose(spectrum.mean, z.mean(0))


def test_repeated_images_in_single_precision_leave_the_basis_orthonormal():
    for seed in range(5):
        z = np.random.default_rng(seed).normal(size=(40, 120)).astype(np.float32)
        basis = Spectrum.of(np.concatenate([z, z[:15]])).basis
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-4)


@pytest.mark.parametrize("n", [6, 40])
def test_log_likelihoods_are_those_of_the_shrunk_covariance(n):
    rng = np.random.default_rng(1)
    z, new = rng.normal(size=(n, 10)) * np.geomspace(3, 0.5, 10), rng.normal(size=(5, 10))
    spectrum, covariance = Spectrum.of(z), np.cov(z.T, bias=True)
    found = spectrum.log_likelihoods(new) - 5 * np.log(2 * np.pi)
    for column, alpha in enumerate(SHRINKAGES):
        shrunk = (1 - alpha) * covariance + alpha * np.trace(covariance) / 10 * np.eye(10)
        np.testing.assert_allclose(found[:, column], multivariate_normal(z.mean(0), shrunk).logpdf(new), rtol=1e-6)


@pytest.mark.parametrize("n_groups", [2, 3])
def test_well_separated_groups_become_modes(n_groups):
    z, label = clusters([80] * n_groups)
    held_out, _ = clusters([20] * n_groups, seed=1)
    fitted, tried = fit_modes(z, held_out, max_modes=4, min_mode_size=20, seed=0)
    assert fitted.modes.n_modes == n_groups
    assert len({*zip(label, fitted.labels, strict=True)}) == n_groups
    for j in range(n_groups):
        own = z[fitted.labels == j]
        np.testing.assert_allclose(fitted.modes.mean[j], own.mean(0), atol=1e-5)
        assert fitted.modes.weight[j] == pytest.approx(len(own) / len(z))
    assert {row["n_modes"] for row in tried} >= {1, n_groups}


def test_one_blob_in_high_dimension_is_one_mode():
    rng = np.random.default_rng(0)
    z, held_out = rng.normal(size=(150, 100)), rng.normal(size=(60, 100))
    fitted, tried = fit_modes(z, held_out, max_modes=3, min_mode_size=20, seed=0)
    assert fitted.modes.n_modes == 1
    assert tried[0] == {"n_modes": 1, "stability": 1.0, "held_out_likelihood": fitted.held_out_likelihood}


def test_a_group_of_constant_images_is_no_mode():
    z, _ = clusters([80])
    constant = np.full((60, 20), -8.0) + 1e-3 * np.random.default_rng(1).normal(size=(60, 20))
    rows, held_out = np.concatenate([z, constant]), np.concatenate([clusters([40], seed=1)[0], constant[:20]])
    assert stability(rows, held_out, 2, seed=0) > 0.99
    fitted, _ = fit_modes(rows, held_out, max_modes=2, min_mode_size=20, seed=0)
    assert fitted.modes.n_modes == 1


@pytest.mark.parametrize(("min_mode_size", "expected"), [(10, 2), (25, 2), (26, 1)])
def test_a_group_that_is_too_small_is_no_mode(min_mode_size, expected):
    z, _ = clusters([75, 25])
    held_out, _ = clusters([30, 10], seed=1)
    fitted, tried = fit_modes(z, held_out, 2, min_mode_size, seed=0)
    assert fitted.modes.n_modes == expected
    assert len(tried) == expected


def test_max_modes_is_respected():
    z, _ = clusters([60, 60, 60])
    fitted, tried = fit_modes(z, z[::3], max_modes=1, min_mode_size=10, seed=0)
    assert fitted.modes.n_modes == len(tried) == 1


def test_chosen_shrinkage_is_near_the_best_for_normals_never_seen():
    d = 60
    z, label = clusters([60, 60], d)
    held_out, _ = clusters([50, 50], d, seed=1)
    unseen, unseen_label = clusters([900, 900], d, seed=2)
    fitted, _ = fit_modes(z, held_out, max_modes=2, min_mode_size=20, seed=0)
    assert fitted.modes.n_modes == 2
    for j in range(2):
        own = unseen_label == label[fitted.labels == j][0]
        likelihood = Spectrum.of(z[fitted.labels == j]).log_likelihoods(unseen[own]).mean(0)
        chosen = likelihood[fitted.shrinkage[j] == SHRINKAGES].item()
        assert chosen > likelihood.max() - 0.01 * d
        assert likelihood.min() < likelihood.max() - 0.1 * d


def test_held_out_likelihood_is_that_of_the_mixture():
    z, _ = clusters([60, 60], d=15)
    held_out, _ = clusters([20, 20], d=15, seed=3)
    fitted, _ = fit_modes(z, held_out, max_modes=2, min_mode_size=20, seed=0)
    mixture = fitted.modes.log_prob(torch.from_numpy(held_out).float()).logsumexp(1).mean() / 15
    assert fitted.held_out_likelihood == pytest.approx(float(mixture) + 0.5 * np.log(2 * np.pi), abs=1e-4)


def test_places_are_the_means_under_the_pooled_whitening():
    z, _ = clusters([80, 60, 70], d=12)
    fitted, _ = fit_modes(z, z[::4], max_modes=3, min_mode_size=20, seed=0)
    modes, labels = fitted.modes, fitted.labels
    means = np.stack([z[labels == j].mean(0) for j in range(3)])
    within = np.cov((z - means[labels]).T, bias=True)
    alpha = modes.weight.numpy() @ fitted.shrinkage
    pooled = (1 - alpha) * within + alpha * np.trace(within) / 12 * np.eye(12)
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        gap = means[i] - means[j]
        expected = gap @ np.linalg.solve(pooled, gap)
        assert float((modes.target_mean[i] - modes.target_mean[j]).square().sum()) == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(modes.weight @ modes.target_mean, np.zeros(12), atol=1e-3)


@given(st.integers(1, 200), st.integers(0, 100))
def test_folds_are_balanced_and_never_empty(n, seed):
    fold = folds(n, seed)
    sizes = np.bincount(fold)
    assert len(fold) == n
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


def test_modes_without_a_fold_do_not_know_it():
    z, _ = clusters([50, 50], d=100)
    fitted, _ = fit_modes(z, z[::5], max_modes=2, min_mode_size=20, seed=0)
    fold = folds(len(z), seed=0)
    without = modes_without_fold(z, fitted, fold)
    rows = torch.from_numpy(z).float()
    for number, modes in enumerate(without):
        left_out = torch.from_numpy(fold == number)
        for j in range(modes.n_modes):
            kept = z[(fold != number) & (fitted.labels == j)]
            np.testing.assert_allclose(modes.mean[j], kept.mean(0), atol=1e-5)
        torch.testing.assert_close(modes.target_mean, fitted.modes.target_mean)
        blind, knowing = (which.log_prob(rows[left_out]).logsumexp(1) for which in (modes, fitted.modes))
        assert (blind < knowing).all()


def test_energy_of_left_out_normals_is_like_that_of_new_ones():
    z, _ = clusters([60, 60], d=100)
    held_out, _ = clusters([30, 30], d=100, seed=1)
    many, _ = clusters([150, 150], d=100, seed=2)
    fold = folds(len(z), seed=0)
    fitted, _ = fit_modes(z, held_out, max_modes=2, min_mode_size=20, seed=0)
    energy = np.empty(len(z))
    for number, modes in enumerate(modes_without_fold(z, fitted, fold)):
        own = fold == number
        energy[own] = -modes.log_prob(torch.from_numpy(z[own]).float()).logsumexp(1).numpy()
    inside, new = (
        -fitted.modes.log_prob(torch.from_numpy(rows).float()).logsumexp(1).numpy().mean() for rows in (z, many)
    )
    assert abs(energy.mean() - new) < 0.3 * abs(new - inside)


def test_a_mode_that_loses_nearly_all_normals_falls_back_on_the_whole():
    z, _ = clusters([60], d=5)
    fitted, _ = fit_modes(z, z[:10], 1, 10, seed=0)
    modes = modes_without_fold(z, fitted, np.zeros(len(z), dtype=int))
    torch.testing.assert_close(modes[0].log_prob(torch.zeros(1, 5)), fitted.modes.log_prob(torch.zeros(1, 5)))
