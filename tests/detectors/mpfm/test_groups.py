import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.groups import (
    NORMALS_PER_GROUP,
    SHARPNESS,
    STABLE,
    Groups,
    choose_modes,
    fit_partition,
    means_of,
    stability,
)
from mpfm_kedro.detectors.mpfm.rounds import assign_folds


def partition(z, n_groups=4):
    return fit_partition(z.astype(np.float32), assign_folds(np.arange(len(z)), 5, 0), n_groups, 2, 20, 0)


def weights(found, z, kept=slice(None)):
    chosen = np.zeros(len(z), dtype=bool)
    chosen[kept] = True
    return found.groups(chosen)(torch.from_numpy(z).float())[0]


def blobs(n=90, d=8):
    """Three balls, one after the other."""
    label = np.repeat(np.arange(3), n // 3)
    return 10 * np.eye(d)[label] + np.random.default_rng(0).normal(size=(n, d)), label


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 60), st.integers(1, 40), st.integers(1, 8), st.floats(0, 30))
def test_weights_of_the_groups_sum_to_one(n, d, n_groups, distance):
    z = np.random.default_rng(n).normal(size=(n, d))
    z[: n // 2] += distance
    found = partition(z, n_groups)
    torch.testing.assert_close(weights(found, z).sum(1), torch.ones(n))
    assert found.n_groups <= min(n_groups, max(1, n // NORMALS_PER_GROUP))


def test_clear_groups_are_found_and_where_there_are_none_the_weights_are_flat():
    z, label = blobs()
    found = partition(z, 3)
    assert len({*zip(label, found.group, strict=True)}) == 3
    assert (weights(found, z).argmax(1).numpy() == found.group).all() and weights(found, z).max(1).values.mean() > 0.95
    ball = np.random.default_rng(0).normal(size=(400, 200))
    found = partition(ball, 3)
    assert (weights(found, ball) - torch.from_numpy(found.group).bincount() / 400).abs().max() < 0.1


def test_the_posterior_is_the_tempered_one_of_a_gaussian_mixture():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 3)))[0]
    center, share, variance, z = rng.normal(size=(4, 3)), rng.dirichlet(np.ones(4)), 0.7, rng.normal(size=(5, 6))
    arrays = {"basis": basis, "center": center, "share": share, "variance": variance, "mode_center": center[:2]}
    p, mode = Groups(**{name: torch.tensor(np.asarray(value)) for name, value in arrays.items()})(torch.from_numpy(z))
    squared = np.square((z @ basis)[:, None] - center).sum(2)
    expected = share * np.exp(-SHARPNESS / 3 * squared / (2 * variance))
    np.testing.assert_allclose(p, expected / expected.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(mode, squared[:, :2].argmin(1))


def test_a_group_that_a_fold_leaves_empty_has_no_weight():
    z, label = blobs()
    found = partition(z, 3)
    p = weights(found, z, label != 0)
    assert p.isfinite().all() and p[:, found.group[0]].max() < 1e-6
    means = means_of(z, np.where(label == 1, 0, 2), 3)
    np.testing.assert_allclose(means, [z[label == 1].mean(0), z.mean(0), z[label != 1].mean(0)])


def test_too_many_groups_are_capped_and_said_and_repeated_images_have_one(caplog):
    with caplog.at_level(logging.INFO):
        assert partition(blobs()[0], 50).n_groups == 90 // NORMALS_PER_GROUP
    assert "too many for 90 normals" in caplog.text
    z = np.repeat(np.random.default_rng(0).normal(size=(2, 5)), 20, axis=0)
    assert partition(z).n_groups <= 2 and weights(partition(z), z).isfinite().all()


def separate(sizes, d=20, distance=8.0):
    """Samples of Gaussian groups, mixed, and the group of each."""
    rng = np.random.default_rng(0)
    label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return distance * np.eye(d)[label] + rng.normal(size=(len(label), d)) * np.geomspace(1.5, 0.1, d), label


def modes_of(z, max_modes=4, min_mode_size=20):
    return choose_modes(z, assign_folds(np.arange(len(z)), 5, 0), max_modes, min_mode_size, 0)


@pytest.mark.parametrize("n_groups", [2, 3])
def test_well_separated_groups_become_modes(n_groups):
    z, label = separate([80] * n_groups)
    labels, tried = modes_of(z)
    assert set(labels) == set(range(n_groups))
    assert len({*zip(label, labels, strict=True)}) == n_groups
    assert {row["n_modes"] for row in tried} >= {1, n_groups}


def test_one_blob_in_high_dimension_is_one_mode():
    labels, tried = modes_of(np.random.default_rng(0).normal(size=(200, 100)), max_modes=3)
    assert set(labels) == {0}
    assert all(row["stability"] < STABLE for row in tried[1:])


def test_a_group_of_constant_images_is_no_mode():
    rows = np.concatenate([separate([80])[0], np.random.default_rng(1).normal(-8, 1e-3, size=(60, 20))])
    assert stability(rows, rows[::4], 2, seed=0) > 0.99
    assert set(modes_of(rows, max_modes=2)[0]) == {0}


@pytest.mark.parametrize(("max_modes", "min_mode_size", "expected"), [(2, 10, 2), (2, 25, 2), (2, 26, 1), (1, 10, 1)])
def test_modes_are_as_many_and_as_large_as_allowed(max_modes, min_mode_size, expected):
    labels, tried = modes_of(separate([75, 25])[0], max_modes, min_mode_size)
    assert len(set(labels)) == len(tried) == expected
