import logging

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.groups import NORMALS_PER_GROUP, SHARPNESS, Groups, fit_partition, means_of
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
