"""Heat maps keep the place and the order of values; colours and boxes follow from them."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.heat_maps import (
    FINER,
    colours,
    find_limits,
    find_regions,
    overlay,
    resize,
    scale,
    smooth_maps,
)

MAPS = arrays.arrays(
    np.float32, st.tuples(*[st.integers(1, n) for n in (3, 7, 9)]), elements=st.floats(-4, 4, width=32)
)


@given(MAPS)
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


def test_images_do_not_blur_into_each_other():
    maps = np.zeros((3, 4, 4))
    maps[1] = 1
    assert smooth_maps(maps)[[0, 2]].max() == 0


def test_a_wider_gaussian_lowers_a_peak():
    maps = np.zeros((1, 9, 9))
    maps[0, 4, 4] = 1
    peaks = [smooth_maps(maps, sigma).max() for sigma in (0, 0.5, 1, 2)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 0.7  # the peak lies between the centres of four finer cells


def test_normals_set_the_scale():
    normals = np.linspace(0, 1000, 100_001)
    low, high = find_limits(normals.reshape(1, 1, -1))
    assert (low, high) == pytest.approx((500, 999))
    assert scale([0, 500, 749.5, 999, 5000], low, high) == pytest.approx([0, 0, 0.5, 1, 1])


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


def test_colours_are_inferno():
    expected = 255 * matplotlib.colormaps["inferno"](np.arange(256))[:, :3]
    assert np.abs(colours() - expected).max() < 7
    grey = colours() @ [0.299, 0.587, 0.114]
    assert (np.diff(grey) > -1).all()
    assert grey[255] - grey[0] > 200


def test_overlay_shows_the_image_where_nothing_is_unusual():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    assert (np.asarray(overlay(image, np.zeros((8, 12)))) == pixels).all()
    heat = np.zeros((6, 9))
    heat[:, 6:] = 1
    found = np.asarray(overlay(image, heat)).astype(int)
    assert found.shape == pixels.shape
    assert (found[:, :55] == pixels[:, :55]).all()
    assert np.abs(found[:, 65:] - (0.3 * pixels[:, 65:] + 0.7 * colours()[255])).max() < 3
    assert overlay(image.convert("L"), heat).mode == "RGB"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smooth_maps(np.zeros((4, 4))), r"shape \(4, 4\)"),
        (lambda: smooth_maps(np.full((1, 4, 4), np.nan)), "not finite"),
        (lambda: scale([1.0], 2, 2), "2 to 2"),
        (lambda: find_limits(np.empty((0, 4, 4))), "at least one unseen normal"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
