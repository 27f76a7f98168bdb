"""Colours and boxes of heat maps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from mpfm_kedro.inspection.heat_maps import COLOURS, USUAL, find_limits, find_regions, overlay, scale


def test_normals_set_the_scale():
    normals = np.linspace(0, 1000, 100_001)
    low, high = find_limits(normals.reshape(1, 1, -1))
    assert (low, high) == pytest.approx((500, 1498))
    assert scale([0, 500, 999, 1498, 5000], low, high) == pytest.approx([0, 0, USUAL, 1, 1])


def test_regions_are_boxes_in_pixels_the_largest_first():
    heat = np.zeros((10, 20))
    heat[1, 2] = 0.9
    heat[5:8, 10:14] = 0.6
    heat[8, 14] = 0.8  # touches at a corner
    heat[0, 19] = 0.5  # at the level is not above it
    large, small = find_regions(heat, 0.5, (200, 50))
    assert large.box == (100, 25, 150, 45)
    assert large.area == pytest.approx(13 / 200)
    assert (large.peak, small.peak) == (0.8, 0.9)
    assert small.box == (20, 5, 30, 10)
    assert find_regions(heat, 0.9, (200, 50)) == []


@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))), st.integers(1, 40), st.integers(1, 40))
@settings(deadline=None)
def test_boxes_cover_all_that_is_above_the_level(marked, width, height):
    regions = find_regions(marked.astype(float), 0.5, (width, height))
    assert sum(region.area for region in regions) == pytest.approx(marked.mean())
    covered = np.zeros((height, width), dtype=bool)
    for region in regions:
        left, upper, right, lower = region.box
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        covered[upper:lower, left:right] = True
    rows, columns = np.nonzero(marked)
    at = (rows * 2 + 1) * height // (2 * marked.shape[0]), (columns * 2 + 1) * width // (2 * marked.shape[1])
    assert covered[at].all()


def test_overlay_shows_the_image_where_nothing_is_unusual():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    assert (np.asarray(overlay(image, np.zeros((8, 12)))) == pixels).all()
    heat = np.zeros((6, 9))
    heat[:, 6:] = 1
    found = np.asarray(overlay(image, heat)).astype(int)
    assert found.shape == pixels.shape
    assert (found[:, :55] == pixels[:, :55]).all()
    assert np.abs(found[:, 65:] - (0.3 * pixels[:, 65:] + 0.7 * COLOURS[255])).max() < 3
    assert overlay(image.convert("L"), heat).mode == "RGB"
