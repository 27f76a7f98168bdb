import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from mpfm_kedro.detectors.mpfm.whitening import SHRINKAGES, Spectrum, Standardiser, no_whitening
from small_mpfm import make_rows


def samples(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * np.geomspace(2, 0.3, d) + 1


def shrunk(z, alpha):
    covariance = np.atleast_2d(np.cov(z.T, bias=True))
    return (1 - alpha) * covariance + alpha * np.trace(covariance) / z.shape[1] * np.eye(z.shape[1])


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 30), st.integers(1, 30), st.sampled_from(SHRINKAGES), st.integers(0, 1000))
def test_whitening_is_the_inverse_root_of_the_shrunk_covariance(n, d, alpha, seed):
    z, eye = samples(n, d, seed), torch.eye(d)
    whitening = Spectrum.of(z).whitening(alpha)
    root = whitening(eye).double().numpy()
    np.testing.assert_allclose(root @ root.T @ shrunk(z, alpha), np.eye(d), atol=2e-3)
    torch.testing.assert_close(whitening.inverse(whitening(eye)), eye, rtol=0, atol=1e-4)
    assert torch.equal(no_whitening(d)(eye), eye)


def test_repeated_images_in_single_precision_leave_the_basis_orthonormal():
    z = samples(40, 120).astype(np.float32)
    basis = Spectrum.of(np.concatenate([z, z[:15]])).basis
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-4)


@pytest.mark.parametrize("n", [6, 40])
def test_log_likelihoods_are_those_of_the_shrunk_covariance(n):
    z, new = samples(n, 10), np.random.default_rng(1).normal(size=(5, 10))
    found = Spectrum.of(z).log_likelihoods(new) - 5 * np.log(2 * np.pi)
    for column, alpha in enumerate(SHRINKAGES):
        expected = multivariate_normal(z.mean(0), shrunk(z, alpha)).logpdf(new)
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-6)


@pytest.mark.parametrize("n", [2, 9, 50])
def test_training_normals_have_mean_zero_and_spread_one(n):
    rows = make_rows(1e3 + np.random.default_rng(0).normal(size=(n, 5)) * [0.01, 1, 100, 1, 1])
    standardiser = Standardiser.fit(rows)
    z, patches = standardiser.z_of(rows), standardiser.patches(rows.map_batch()).flatten(0, 1)
    for values in (z, patches):
        torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), rtol=0, atol=0.02)
        torch.testing.assert_close(values.std(0, correction=0), torch.ones(values.shape[1]), rtol=0, atol=0.02)
