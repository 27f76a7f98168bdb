import numpy as np
import pytest

from mpfm_kedro.detectors.mpfm.groups import STABLE, choose_modes, stability
from mpfm_kedro.detectors.mpfm.rounds import assign_folds


def clusters(sizes, d=20, distance=8.0):
    """Samples of Gaussian groups, mixed, and the group of each."""
    rng = np.random.default_rng(0)
    label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return distance * np.eye(d)[label] + rng.normal(size=(len(label), d)) * np.geomspace(1.5, 0.1, d), label


def partition(z, max_modes=4, min_mode_size=20):
    return choose_modes(z, assign_folds(np.arange(len(z)), 5, 0), max_modes, min_mode_size, 0)


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
    assert all(row["stability"] < STABLE for row in tried[1:])


def test_a_group_of_constant_images_is_no_mode():
    rows = np.concatenate([clusters([80])[0], np.random.default_rng(1).normal(-8, 1e-3, size=(60, 20))])
    assert stability(rows, rows[::4], 2, seed=0) > 0.99
    assert set(partition(rows, max_modes=2)[0]) == {0}


@pytest.mark.parametrize(("max_modes", "min_mode_size", "expected"), [(2, 10, 2), (2, 25, 2), (2, 26, 1), (1, 10, 1)])
def test_modes_are_as_many_and_as_large_as_allowed(max_modes, min_mode_size, expected):
    labels, tried = partition(clusters([75, 25])[0], max_modes, min_mode_size)
    assert len(set(labels)) == len(tried) == expected
