import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.detectors.mpfm.division import divide


def numbered(first, n, source):
    """Rows that hold their own numbers."""
    rows = first + np.arange(n)
    maps = np.arange(500, dtype=np.float16).reshape(-1, 1, 1, 1)
    return FeatureRows(rows[:, None].astype(np.float32), maps, rows, source)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 60), st.integers(0, 2), st.floats(0.05, 0.45), st.integers(0, 9))
def test_every_normal_is_fitted_or_held_back_with_its_pseudo_anomalies(n, views, share, seed):
    pseudo = numbered(100, n * views, np.tile(np.arange(n), views))
    data = TrainingData(numbered(0, n, np.arange(n)), pseudo, numbered(400, 3, np.arange(3)))
    found = divide(data, share, seed)
    fitted, held_back = found.normals.rows, found.held_back.rows
    assert sorted([*fitted, *held_back]) == list(range(n))
    assert len(held_back) == max(1, round(share * n))
    for originals, made in ((fitted, found.pseudo), (held_back, found.held_back_pseudo)):
        assert len(made) == views * len(originals)
        np.testing.assert_array_equal(originals[made.source], (made.rows - 100) % n)
        np.testing.assert_array_equal(made.pooled[:, 0], made.rows)
    np.testing.assert_array_equal(found.normals.source, np.arange(len(fitted)))


def test_held_back_normals_follow_the_seed():
    empty = numbered(100, 0, np.arange(0))
    data = TrainingData(numbered(0, 40, np.arange(40)), empty, empty)
    first, again, other = (divide(data, 0.2, seed).held_back.rows.tolist() for seed in (1, 1, 2))
    assert first == again != other
