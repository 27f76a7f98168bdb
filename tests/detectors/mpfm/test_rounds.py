import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds, assign_folds
from small_mpfm import make_rows


def training_data(n, source, items=None):
    """Images without content."""
    normals, anomalies = make_rows(np.empty((n, 1))), make_rows(np.empty((len(source), 1)), source=source)
    return TrainingData(normals, normals.take(np.arange(0)), anomalies, items)


@given(st.integers(1, 200), st.integers(2, 9), st.integers(0, 100))
def test_folds_are_balanced_and_never_empty(n, n_folds, seed):
    fold = assign_folds(np.arange(n), n_folds, seed)
    sizes = np.bincount(fold)
    assert len(fold) == n and len(sizes) == min(n, n_folds)
    assert sizes.min() >= 1 and sizes.max() - sizes.min() <= 1


@settings(deadline=None)
@given(st.integers(2, 30), st.integers(0, 12), st.integers(1, 4), st.integers(2, 6), st.integers(0, 50))
def test_each_image_is_left_out_once_with_all_of_its_views(n, n_known, views, n_folds, seed):
    source = np.tile(np.arange(n_known), views)
    rounds = Rounds.of_folds(assign_folds(np.arange(n), n_folds, seed), training_data(n, source), seed)
    assert ((~rounds.normals).sum(0) == 1).all()
    assert ((~rounds.anomalies).sum(0) == (n_known > 1)).all()  # the only one is never left out
    assert rounds.normals[FINAL].all() and rounds.anomalies[FINAL].all()
    assert rounds.normals.any(1).all() and (rounds.anomalies.any(1).all() or not n_known)
    for own in rounds.anomalies:
        assert not set(source[own]) & set(source[~own])


@settings(deadline=None)
@given(st.integers(4, 40), st.integers(2, 12), st.integers(2, 15), st.integers(2, 6), st.integers(0, 50))
def test_whole_items_are_left_out_good_and_defective_images_together(n, n_known, n_items, n_folds, seed):
    items = np.random.default_rng(seed).integers(0, n_items, n + n_known)
    data = training_data(n, np.tile(np.arange(n_known), 2), items)
    rounds = Rounds.of_folds(assign_folds(data.normal_items, n_folds, seed), data, seed)
    known = items[n:][data.anomalies.source]
    for normals, anomalies in zip(rounds.normals, rounds.anomalies, strict=True):
        left_out = {*items[:n][~normals], *known[~anomalies]}
        assert not left_out & set(items[:n][normals])
        if len(set(known)) > 1:
            assert not left_out & set(known[anomalies])
    assert ((~rounds.normals).sum(0) == 1).all()


def test_folds_of_images_that_are_items_are_drawn_as_those_of_images():
    numbers = np.random.default_rng(3).permutation(np.arange(17) % 5)
    for items in (np.arange(17), np.arange(40, 57)):
        assert assign_folds(items, 5, 3).tolist() == numbers.tolist()
