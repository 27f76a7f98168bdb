import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds, assign_folds


@given(st.integers(1, 200), st.integers(2, 9), st.integers(0, 100))
def test_folds_are_balanced_and_never_empty(n, n_folds, seed):
    fold = assign_folds(n, n_folds, seed)
    sizes = np.bincount(fold)
    assert len(fold) == n and len(sizes) == min(n, n_folds)
    assert sizes.min() >= 1 and sizes.max() - sizes.min() <= 1


@settings(deadline=None)
@given(st.integers(2, 30), st.integers(0, 12), st.integers(1, 4), st.integers(2, 6), st.integers(0, 50))
def test_each_image_is_left_out_once_with_all_of_its_views(n, n_known, views, n_folds, seed):
    source = np.tile(np.arange(n_known), views)
    rounds = Rounds.of_folds(assign_folds(n, n_folds, seed), source, seed)
    assert ((~rounds.normals).sum(0) == 1).all()
    assert ((~rounds.anomalies).sum(0) == (n_known > 1)).all()  # the only one is never left out
    assert rounds.normals[FINAL].all() and rounds.anomalies[FINAL].all()
    assert rounds.normals.any(1).all() and (rounds.anomalies.any(1).all() or not n_known)
    for own in rounds.anomalies:
        assert not set(source[own]) & set(source[~own])
