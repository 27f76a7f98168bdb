import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from mpfm_kedro.detectors.mpfm.mode_fitting import (
    MIN_UNSEEN,
    SHRINKAGES,
    Spectrum,
    build_modes,
    choose_partition,
    choose_shrinkage,
    folds,
    spectra_of,
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


def partition(z, max_modes=4, min_mode_size=20, seed=0):
    return choose_partition(z, folds(len(z), seed), max_modes, min_mode_size, seed)


@pytest.mark.parametrize("n_groups", [2, 3])
def test_well_separated_groups_become_modes(n_groups):
    z, label = clusters([80] * n_groups)
    labels, tried = partition(z)
    assert set(labels) == set(range(n_groups))
    assert len({*zip(label, labels, strict=True)}) == n_groups
    assert {row["n_modes"] for row in tried} >= {1, n_groups}


def test_one_blob_in_high_dimension_is_one_mode():
    labels, tried = partition(np.random.default_rng(0).normal(size=(200, 100)), max_modes=3)
    assert set(labels) == {0}
    assert tried[0] == {"n_modes": 1, "stability": 1.0}
    assert all(row["stability"] < 0.9 for row in tried[1:])


def test_a_group_of_constant_images_is_no_mode():
    z, _ = clusters([80])
    constant = np.full((60, 20), -8.0) + 1e-3 * np.random.default_rng(1).normal(size=(60, 20))
    rows = np.concatenate([z, constant])
    assert stability(rows, rows[::4], 2, seed=0) > 0.99
    assert set(partition(rows, max_modes=2)[0]) == {0}


@pytest.mark.parametrize(("min_mode_size", "expected"), [(10, 2), (25, 2), (26, 1)])
def test_a_group_that_is_too_small_is_no_mode(min_mode_size, expected):
    z, _ = clusters([75, 25])
    labels, tried = partition(z, 2, min_mode_size)
    assert len(set(labels)) == len(tried) == expected


def test_max_modes_is_respected():
    labels, tried = partition(clusters([60, 60, 60])[0], max_modes=1, min_mode_size=10)
    assert set(labels) == {0}
    assert len(tried) == 1


@pytest.mark.parametrize(("unseen", "expected"), [(MIN_UNSEEN, 2), (MIN_UNSEEN - 1, 1)])
def test_few_unseen_normals_cannot_tell_groups_apart(unseen, expected):
    z, _ = clusters([50, 50])
    fold = np.ones(100, dtype=int)
    fold[:unseen] = 0
    assert len(set(choose_partition(z, fold, 2, 10, 0)[0])) == expected


@pytest.mark.parametrize("n", range(2, 11))
def test_few_normals_are_one_mode(n):
    labels, _ = partition(np.random.default_rng(n).normal(size=(n, 6)), min_mode_size=1)
    assert labels.tolist() == [0] * n


def test_chosen_shrinkage_is_near_the_best_for_normals_never_seen():
    d = 60
    z, label = clusters([60, 60], d)
    held_out, held_out_label = clusters([50, 50], d, seed=1)
    unseen, unseen_label = clusters([900, 900], d, seed=2)
    spectra = spectra_of(z, label, 2)
    table = np.stack([spectrum.log_likelihoods(held_out) for spectrum in spectra], axis=1)
    halves = np.array_split(np.arange(100), 2)
    chosen = choose_shrinkage([table[half] for half in halves], [held_out_label[half] for half in halves], 2)
    for j in range(2):
        likelihood = spectra[j].log_likelihoods(unseen[unseen_label == j]).mean(0)
        assert likelihood[chosen[j] == SHRINKAGES].item() > likelihood.max() - 0.01 * d
        assert likelihood.min() < likelihood.max() - 0.1 * d


def test_shrinkage_is_chosen_by_the_mode_s_own_normals_or_by_all():
    table = np.zeros((3, 2, len(SHRINKAGES)))
    table[:2, 0, 4] = table[2, 0, 7] = 1.0
    table[:, 1, 9] = 1.0
    found = choose_shrinkage([table], [np.array([0, 0, 0])], 2)
    np.testing.assert_array_equal(found, SHRINKAGES[[4, 9]])


def test_modes_have_means_and_shares_of_the_groups():
    z, label = clusters([75, 25])
    modes = build_modes(spectra_of(z, label, 2), z, label, np.array([0.1, 0.3]))
    for j in range(2):
        np.testing.assert_allclose(modes.mean[j], z[label == j].mean(0), atol=1e-5)
        covariance = np.cov(z[label == j].T, bias=True)
        level = np.trace(covariance) / 20
        shrunk = (1 - [0.1, 0.3][j]) * covariance + [0.1, 0.3][j] * level * np.eye(20)
        dense = (modes.basis[j] * modes.variance[j]) @ modes.basis[j].T
        dense += modes.residual_variance[j] * (torch.eye(20) - modes.basis[j] @ modes.basis[j].T)
        np.testing.assert_allclose(dense, shrunk, atol=1e-4)
    np.testing.assert_allclose(modes.weight, [0.75, 0.25])


def test_target_means_are_the_means_under_the_pooled_whitening():
    z, labels = clusters([80, 60, 70], d=12)
    shrinkage = np.array([0.05, 0.1, 0.2])
    modes = build_modes(spectra_of(z, labels, 3), z, labels, shrinkage)
    means = np.stack([z[labels == j].mean(0) for j in range(3)])
    within = np.cov((z - means[labels]).T, bias=True)
    alpha = modes.weight.numpy() @ shrinkage
    pooled = (1 - alpha) * within + alpha * np.trace(within) / 12 * np.eye(12)
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        gap = means[i] - means[j]
        expected = gap @ np.linalg.solve(pooled, gap)
        assert float((modes.target_mean[i] - modes.target_mean[j]).square().sum()) == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(modes.weight @ modes.target_mean, np.zeros(12), atol=1e-3)


@pytest.mark.parametrize("sizes", [(30, 1), (30, 0)])
def test_a_mode_without_normals_to_speak_of_has_the_spectrum_of_all(sizes):
    z, _ = clusters([sum(sizes)], d=5)
    labels = np.repeat([0, 1], sizes)
    spectra = spectra_of(z, labels, 2)
    np.testing.assert_allclose(spectra[1].mean, z.mean(0))
    modes = build_modes(spectra, z, labels, np.array([0.1, 0.1]))
    assert modes.log_prob(torch.zeros(1, 5)).isfinite().all()
    assert float(modes.weight.sum()) == pytest.approx(1)


@given(st.integers(1, 200), st.integers(0, 100))
def test_folds_are_balanced_and_never_empty(n, seed):
    fold = folds(n, seed)
    sizes = np.bincount(fold)
    assert len(fold) == n
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
