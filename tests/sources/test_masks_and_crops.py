"""Properties of crops and masks."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import aitex, sdd
from mpfm_kedro.sources.masks import holds_defect, image_size, read_mask

sides = st.integers(1, 5000)
tilings = st.sampled_from([aitex.patches, sdd.strips])


@given(tiling=tilings, width=sides, height=sides)
def test_boxes_cover_the_image_without_overlap(tiling, width, height):
    boxes = tiling(width, height)
    assert all(0 <= left <= right <= width and 0 <= upper <= lower <= height for left, upper, right, lower in boxes)
    assert sum((right - left) * (lower - upper) for left, upper, right, lower in boxes) == width * height
    ends, starts = [box[2:] for box in boxes[:-1]], [box[:2] for box in boxes[1:]]
    axis = 0 if tiling is aitex.patches else 1
    assert [end[axis] for end in ends] == [start[axis] for start in starts]
    if tiling is aitex.patches:
        assert all(right - left == aitex.PATCH for left, _, right, _ in boxes[:-1])


@settings(deadline=None, max_examples=40)
@given(
    width=st.integers(1, 700),
    height=st.integers(3, 40),
    marks=st.lists(st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)), max_size=4),
    mode=st.sampled_from(["L", "LA", "P", "RGB", "RGBA", "1"]),
    tiling=tilings,
)
def test_label_is_whether_the_mask_has_a_pixel_in_the_box(width, height, marks, mode, tiling):
    pixels = np.zeros((height, width), np.uint8)
    for x, y in marks:
        pixels[int(y * height), int(x * width)] = 255
    with TemporaryDirectory() as folder:
        mask = Path(folder) / "mask.png"
        Image.fromarray(pixels).convert(mode).save(mask)
        marked = read_mask([mask], mask, "test")
    assert marked.shape == (height, width)
    assert (marked == (pixels > 0)).all()
    for left, upper, right, lower in tiling(width, height):
        expected = any(left <= int(x * width) < right and upper <= int(y * height) < lower for x, y in marks)
        assert holds_defect(marked, (left, upper, right, lower)) == expected


def test_masks_of_one_image_are_merged(tmp_path, draw):
    image = draw(tmp_path / "image.png", (4, 3))
    masks = [draw(tmp_path / "a.png", (4, 3), ((0, 0),)), draw(tmp_path / "b.png", (4, 3), ((3, 2),))]
    marked = read_mask(masks, image, "test")
    assert np.argwhere(marked).tolist() == [[0, 0], [2, 3]]


def test_truncated_mask_is_named(tmp_path):
    mask = tmp_path / "mask.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(mask)
    mask.write_bytes(mask.read_bytes()[:400])
    assert image_size(mask) == (64, 64)
    with pytest.raises(InputError, match=r"cannot read the mask .*mask\.png"):
        read_mask([mask], mask, "test")
