"""How well a heat map shows where the defect is: pixel AUROC, AUPRO and the best pixel F1.

Pixels are counted image by image in a histogram of their values, so that memory does not grow with the images. A value
is cut to ten binary digits, by 0.2 % at most; of the cut values all measures are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import label

from mpfm_kedro.evaluation.columns import PIXEL_MEASURES
from mpfm_kedro.images.position_maps import resize, smooth_maps
from mpfm_kedro.sources.masks import merge_masks
from mpfm_kedro.sources.samples import parse_crop

FPR_LIMIT = 0.3  # of the AUPRO
KEY_BITS = 18  # sign, eight of the exponent, nine digits after the leading one


@dataclass(frozen=True)
class Marked:
    """Where a sample is defective."""

    mask_path: str  # as in the sample table: several joined with "|", empty for a sample without defects
    crop: str  # likewise
    size: tuple[int, int]  # width and height in which pixels are counted


def measure_maps(
    maps: NDArray[np.float32],
    marked: Sequence[Marked | None],
    folder: Path,
    subsets: Sequence[Sequence[int]],
    padded: bool = False,
) -> NDArray[np.float64]:
    """The three measures of heat maps (n, H', W') on each of some subsets of the n samples, (subsets, 3).

    ``marked`` is None where nobody knows where the defect is: the sample does not count. ``folder`` has the masks;
    ``padded`` says that the images were padded to squares.
    """
    counts = [PixelCounts() for _ in subsets]
    members = [set(subset) for subset in subsets]
    for place, own in enumerate(marked):
        if own is not None:
            heat = resize(smooth_maps(maps[place : place + 1], sizes=[own.size] if padded else None)[0], own.size)
            image = PixelCounts()
            image.add(heat, read_mask(folder, own))
            for total, inside in zip(counts, members, strict=True):
                if place in inside:
                    total.counts += image.counts
                    total.n_regions += image.n_regions
    return np.array([list(total.measures().values()) for total in counts])


class PixelCounts:
    """Histograms of values of normal pixels, of those in defects, and of the latter by regions."""

    def __init__(self) -> None:
        self.counts = np.zeros((3, 1 << KEY_BITS))
        self.n_regions = 0

    def add(self, heat: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
        """Count the pixels of one image, (h, w) each; marked pixels that touch at a corner are one region."""
        keys, (normal, marked, overlap) = _keys(heat), self.counts
        normal += np.bincount(keys[~mask], minlength=1 << KEY_BITS)
        if mask.any():
            regions, number = label(mask, structure=np.ones((3, 3)))
            own, inside = keys[mask], regions[mask]
            self.n_regions += number
            np.add.at(marked, own, 1)
            np.add.at(overlap, own, 1 / np.bincount(inside)[inside])

    def measures(self) -> dict[str, float]:
        """The three measures; undefined where no pixel, or every pixel, is in a defect.

        For every threshold t the pixels with a value of t or more are called anomalous. FPR(t) and TPR(t) are their
        shares of the normal and of the marked pixels, PRO(t) is the mean over all defect regions of the share of the
        region's pixels.

            pixel AUROC = ∫ TPR dFPR,   AUPRO = ∫_0^0.3 PRO dFPR / 0.3,   F1 = max_t 2 TP / (2 TP + FP + FN)
        """
        false, true, overlap = map(_from_above, self.counts)
        if not (false[-1] and true[-1]):
            return dict.fromkeys(PIXEL_MEASURES, np.nan)
        rate = false / false[-1]
        f1 = 2 * true / (true + false + true[-1])
        return {
            "pixel_auroc": float(np.trapezoid(true / true[-1], rate)),
            "aupro": _area_up_to(FPR_LIMIT, rate, overlap / self.n_regions),
            "pixel_f1": float(f1.max()),
        }


def read_mask(folder: Path, own: Marked) -> NDArray[np.bool_]:
    """Where a sample is defective, (height, width); ``folder`` has the masks.

    A pixel of a smaller size is marked if any of those that it stands for is: no small defect is lost.
    """
    if not own.mask_path:
        return np.zeros(own.size[::-1], dtype=bool)
    marked = merge_masks([folder / name for name in own.mask_path.split("|")], "Pixel measures")
    left, upper, right, lower = parse_crop(own.crop) or (0, 0, *marked.shape[::-1])
    marked = marked[upper:lower, left:right]
    if marked.shape == own.size[::-1]:
        return marked
    shares = Image.fromarray(marked.astype(np.float32)).resize(own.size, Image.Resampling.BOX)
    return np.asarray(shares) > 0


def _keys(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """The leading bits of single-precision numbers as integers from 0 in the order of the numbers."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))  # negative numbers are stored by their size
    return (ordered >> (32 - KEY_BITS)).astype(np.int64)


def _from_above(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many pixels have at least the value of each key, from none to all."""
    return np.concatenate([[0], np.cumsum(counts[::-1])])


def _area_up_to(limit: float, rate: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """∫_0^limit values d rate / limit, linear between the points."""
    inside = rate <= limit
    at_limit = np.interp(limit, rate, values)
    return float(np.trapezoid(np.append(values[inside], at_limit), np.append(rate[inside], limit)) / limit)
