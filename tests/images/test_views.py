"""Views: the same pixels on every machine; CutMix changes one rectangle; flips and rotations are what they say."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mpfm_kedro.images.views import AUGMENTATIONS, apply_view, cutmix


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


EXPECTED = {
    "original": np.asarray,
    "hflip": np.fliplr,
    "vflip": np.flipud,
    "rot90": lambda pixels: np.rot90(pixels, 1),
    "rot180": lambda pixels: np.rot90(pixels, 2),
    "rot270": lambda pixels: np.rot90(pixels, 3),
    "transpose": lambda pixels: pixels.transpose(1, 0, 2),
    "transverse": lambda pixels: np.rot90(pixels, 2).transpose(1, 0, 2),
}


@pytest.mark.parametrize("view", ["original", *AUGMENTATIONS])
def test_flips_and_rotations_are_what_they_say(view):
    pixels = noise(5, 3)
    augmented = apply_view(Image.fromarray(pixels), view, "hash")
    np.testing.assert_array_equal(np.asarray(augmented), EXPECTED[view](pixels))


def test_a_view_depends_on_the_content_and_its_number_only():
    pixels = noise(40, 30)
    views = {
        (content, view): np.asarray(apply_view(Image.fromarray(pixels), view, content)).tobytes()
        for content in ("hash-a", "hash-b")
        for view in ("cutmix-0", "cutmix-1")
    }
    assert len(set(views.values())) == 4
    again = apply_view(Image.fromarray(pixels.copy()), "cutmix-1", "hash-b")
    assert np.asarray(again).tobytes() == views["hash-b", "cutmix-1"]


def test_views_are_the_same_on_every_machine():
    """Features that were stored on another machine stay valid only while this holds."""
    ramp = (np.arange(32 * 24 * 3) % 251).astype(np.uint8).reshape(24, 32, 3)
    mixed = np.asarray(apply_view(Image.fromarray(ramp), "cutmix-0", "content"))
    assert hashlib.sha256(mixed.tobytes()).hexdigest()[:16] == "b4f0ffc4c064f516"


@given(st.integers(20, 160), st.integers(20, 160), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_cutmix_changes_one_rectangle_of_2_to_15_percent(width, height, seed):
    pixels = noise(width, height, seed)
    mixed = np.asarray(cutmix(Image.fromarray(pixels), np.random.default_rng(seed)))
    assert mixed.shape == pixels.shape
    assert mixed.dtype == np.uint8
    rows, columns = np.nonzero((mixed != pixels).any(2))
    h, w = (int(np.ptp(axis)) + 1 for axis in (rows, columns))
    # a side is rounded to whole pixels, and a pixel at the edge may keep its value by chance
    assert (h - 0.5) * (w - 0.5) <= 0.15 * width * height
    assert (h + 1.5) * (w + 1.5) >= 0.02 * width * height


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_pasted_colours_come_from_the_image_give_or_take_a_tenth(seed):
    pixels = np.full((40, 40, 3), 100, np.uint8)
    mixed = np.asarray(cutmix(Image.fromarray(pixels), np.random.default_rng(seed)))
    assert mixed.min() >= 90
    assert mixed.max() <= 110
