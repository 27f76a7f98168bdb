import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpfm_kedro.backbones.rows import FeatureRows


def rows_of(count, channels, side):
    """Many images that share one stored map."""
    maps = np.zeros((1, channels, side, side), np.float16)
    index = np.zeros(count, dtype=int)
    return FeatureRows(np.zeros((count, 1), np.float32), maps, index, np.arange(count))


@given(count=st.integers(0, 400), at_most=st.integers(1, 300), bytes_per_image=st.none() | st.integers(1, 1 << 28))
def test_slices_cover_all_images_in_order_within_both_bounds(count, at_most, bytes_per_image):
    rows = rows_of(count, 3, 2)
    parts = list(rows.slices(at_most, bytes_per_image))
    assert [image for part in parts for image in range(count)[part]] == list(range(count))
    for part in parts:
        size = part.stop - part.start
        assert 1 <= size <= at_most
        assert size == 1 or size * (bytes_per_image or 24) <= 64 << 20


@pytest.mark.parametrize(("side", "sizes"), [(14, [64] * 6 + [16]), (56, [27] * 14 + [22]), (120, [6] * 66 + [4])])
def test_batches_of_maps_are_bounded_in_bytes(side, sizes):
    """384 channels: 150 KB per image at 224 px, 2.4 MB at 896 px, 11 MB at 1920 px."""
    assert [part.stop - part.start for part in rows_of(400, 384, side).slices()] == sizes


def test_batches_of_maps_come_with_their_slices():
    maps = np.arange(12, dtype=np.float16).reshape(3, 1, 2, 2)
    rows = FeatureRows(np.zeros((3, 1), np.float32), maps, np.array([2, 0, 1]), np.arange(3))
    ((part, batch),) = rows.map_batches()
    assert (part.start, part.stop) == (0, 3)
    torch.testing.assert_close(batch, torch.from_numpy(maps[[2, 0, 1]]))


def test_rows_of_other_backbones_stay_beside():
    maps, places = np.zeros((4, 1, 1, 1), np.float16), np.array([3, 1, 2, 0])
    other = FeatureRows(np.arange(8, dtype=np.float32).reshape(4, 2), maps, places, np.arange(4))
    both = FeatureRows(np.zeros((4, 1), np.float32), maps, np.arange(4), np.arange(4), (other,))
    (taken,) = both.take(np.array([2, 0])).others
    assert taken.rows.tolist() == [2, 3] and taken.pooled.tolist() == [[4, 5], [0, 1]]
    assert [both.of_backbone(number).pooled.shape for number in range(2)] == [(4, 1), (4, 2)]
    assert both.of_backbone(0).others == both.of_backbone(1).others == ()
