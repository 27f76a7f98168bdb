"""Smoothed maps keep the place and the range of the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mpfm_kedro.images.position_maps import FINER, resize, smooth_maps

MAPS = arrays.arrays(
    np.float32, st.tuples(*[st.integers(1, n) for n in (3, 7, 9)]), elements=st.floats(-4, 4, width=32)
)


@given(MAPS)
@settings(deadline=None)
def test_smoothing_keeps_range_and_makes_a_finer_grid(maps):
    found = smooth_maps(maps)
    n, height, width = maps.shape
    assert found.shape == (n, FINER * height, FINER * width)
    for one, before in zip(found, maps, strict=True):
        assert before.min() - 1e-4 <= one.min()
        assert one.max() <= before.max() + 1e-4


def test_a_peak_stays_where_it_is():
    maps = np.zeros((2, 5, 8))
    maps[0, 1, 6] = maps[1, 4, 0] = 1
    heat = smooth_maps(maps)
    for one, (row, column) in zip(heat, [(1, 6), (4, 0)], strict=True):
        peak = np.unravel_index(one.argmax(), one.shape)
        assert (peak[0] // FINER, peak[1] // FINER) == (row, column)
        large = resize(one, (800, 500))
        peak = np.unravel_index(large.argmax(), large.shape)
        assert (peak[0] // 100, peak[1] // 100) == (row, column)


def test_resizing_is_bilinear_between_centres_of_cells():
    found = resize([[0.0, 1.0]], (8, 1))[0]
    assert found == pytest.approx([0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1])
