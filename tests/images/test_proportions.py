"""Padding to a square, and the way back."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mpfm_kedro.images.proportions import cut_padding, pad_to_square
from mpfm_kedro.inspection.heat_maps import find_regions


@pytest.mark.parametrize("size", [(40, 10), (9, 30), (8, 8)])
def test_an_image_is_padded_by_the_mean_colour_of_its_border(size: tuple[int, int]):
    pixels = np.full((size[1], size[0], 3), 30, dtype=np.uint8)
    pixels[1:-1, 1:-1] = 200
    square = np.asarray(pad_to_square(Image.fromarray(pixels)))
    side = max(size)
    left, upper = (side - size[0]) // 2, (side - size[1]) // 2
    assert square.shape == (side, side, 3)
    np.testing.assert_array_equal(square[upper : upper + size[1], left : left + size[0]], pixels)
    outside = np.ones((side, side), dtype=bool)
    outside[upper : upper + size[1], left : left + size[0]] = False
    assert (square[outside] == 30).all()


@pytest.mark.parametrize(("size", "box"), [((400, 100), (300, 25, 375, 75)), ((100, 200), (0, 150, 50, 200))])
def test_boxes_are_in_pixels_of_the_image(size: tuple[int, int], box: tuple[int, int, int, int]):
    marked = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    marked[box[1] : box[3], box[0] : box[2]] = 255
    square = pad_to_square(Image.fromarray(marked)).convert("L").resize((64, 64), Image.Resampling.BILINEAR)
    heat = cut_padding(np.asarray(square, dtype=np.float32) / 255, size)
    (region,) = find_regions(heat, 0.5, size)
    cell = max(size) / 64
    assert np.abs(np.subtract(region.box, box)).max() <= 2 * cell
