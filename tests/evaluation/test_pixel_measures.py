"""Pixel measures are those of their definitions: worked by hand, by scikit-learn, and region by region."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from scipy.ndimage import label
from sklearn.metrics import precision_recall_curve, roc_auc_score

from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.pixel_measures import Marked, PixelCounts, measure_maps, read_mask

WIDTH = 12
IMAGES = st.lists(
    st.tuples(
        arrays.arrays(np.float32, (5, WIDTH), elements=st.integers(-8, 8)),
        arrays.arrays(np.bool_, (5, WIDTH), elements=st.sampled_from([False, False, False, True])),
    ),
    min_size=1,
    max_size=4,
).filter(lambda images: 0 < np.mean([mask.mean() for _, mask in images]) < 1)


def measure(*images):
    counts = PixelCounts()
    for heat, mask in images:
        counts.add(np.asarray(heat, dtype=np.float32), np.asarray(mask, dtype=bool))
    return counts.measures()


def test_case_worked_by_hand():
    """Two regions, of one and of two pixels; PRO is 1/2 up to FPR 2/7, and 1 from there on."""
    heat = [[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]
    mask = [[1, 0, 0, 1, 1, 0, 0, 0, 0, 0]]
    expected = {"pixel_auroc": 17 / 21, "aupro": 11 / 21, "pixel_f1": 6 / 8}
    assert measure((heat, mask)) == pytest.approx(expected)
    # the same pixels in two images, one of them without a defect
    halves = [(np.array(heat)[:, part], np.array(mask)[:, part]) for part in (slice(5), slice(5, None))]
    assert measure(*halves) == pytest.approx(expected)


@given(IMAGES)
@settings(deadline=None)
def test_measures_are_those_of_scikit_learn_and_of_every_region(images):
    found = measure(*images)
    values = np.concatenate([heat.ravel() for heat, _ in images])
    marked = np.concatenate([mask.ravel() for _, mask in images])
    assert found["pixel_auroc"] == pytest.approx(roc_auc_score(marked, values))
    precision, recall, _ = precision_recall_curve(marked, values)
    with np.errstate(invalid="ignore"):
        assert found["pixel_f1"] == pytest.approx(np.nanmax(2 * precision * recall / (precision + recall)))
    assert found["aupro"] == pytest.approx(aupro_by_regions(images))


def aupro_by_regions(images) -> float:
    """Every threshold and every region in turn."""
    regions, normal = [], np.concatenate([heat[~mask] for heat, mask in images])
    for heat, mask in images:
        numbers, n = label(mask, structure=np.ones((3, 3)))
        regions += [heat[numbers == number] for number in range(1, n + 1)]
    points = [(0.0, 0.0)]
    for threshold in sorted({*normal, *np.concatenate(regions)}, reverse=True):
        pro = np.mean([(region >= threshold).mean() for region in regions])
        points.append(((normal >= threshold).mean(), pro))
    area = 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 < 0.3 and x1 > x0:
            end = min(x1, 0.3)
            area += (end - x0) * (y0 + (y0 + (y1 - y0) * (end - x0) / (x1 - x0))) / 2
    return area / 0.3


def test_values_of_any_scale_and_sign():
    rng = np.random.default_rng(0)
    heat, mask = rng.normal(size=(100, 100)), rng.uniform(size=(100, 100)) < 0.1
    heat[mask] += 1
    exact = roc_auc_score(mask.ravel(), heat.ravel())
    for factor in (1e-20, 1e-3, 1, 1e20):
        assert measure((factor * heat, mask))["pixel_auroc"] == pytest.approx(exact, abs=1e-4)


@pytest.fixture
def folder(tmp_path):
    """Two masks of 40 × 20: a column at 7, and one pixel at (30, 11)."""
    first, second = np.zeros((20, 40), dtype=np.uint8), np.zeros((20, 40), dtype=np.uint8)
    first[:, 7] = 255
    second[11, 30] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(first).save(tmp_path / "masks/a.png")
    Image.fromarray(second).save(tmp_path / "masks/b.png")
    return tmp_path


def test_masks_are_merged_and_cropped(folder):
    both = read_mask(folder, Marked("masks/a.png|masks/b.png", "", (40, 20)))
    assert both.sum() == 21
    assert both[:, 7].all() and both[11, 30]
    cropped = read_mask(folder, Marked("masks/a.png|masks/b.png", "20,10,40,20", (20, 10)))
    assert np.argwhere(cropped).tolist() == [[1, 10]]


def test_smaller_mask_loses_no_defect(folder):
    found = read_mask(folder, Marked("masks/b.png", "", (10, 5)))
    assert np.argwhere(found).tolist() == [[2, 7]]


def test_missing_mask_is_named(folder):
    with pytest.raises(InputError, match=r"masks/c\.png"):
        read_mask(folder, Marked("masks/c.png", "", (40, 20)))


def test_maps_of_padded_images_are_measured_without_the_padding(folder):
    mask = np.zeros((20, 40), dtype=np.uint8)
    mask[:10, 30:] = 255
    Image.fromarray(mask).save(folder / "masks/corner.png")
    positions = np.zeros((1, 8, 8), dtype=np.float32)
    positions[0, 2:4, 6:] = 1  # in the square of 40 × 40, where the image begins at row 10
    marked = [Marked("masks/corner.png", "", (40, 20))]
    (padded, squeezed) = (measure_maps(positions, marked, folder, [[0]], keep)[0, 0] for keep in (True, False))
    assert padded > 0.98 > squeezed
