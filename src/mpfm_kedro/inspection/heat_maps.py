"""Heat maps: from the values of positions to what people see.

A detector scores each position of an image, (H', W'). People see these scores smoothed (``images.position_maps``), on
a scale that the normals set, in colours over the image, with boxes around regions that stand out.
"""

import io
import math
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.ndimage import find_objects, label

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.position_maps import Floats, resize

LOW, HIGH = 50.0, 99.9  # percentiles of the normals' values that become 0 and USUAL
USUAL = 0.5  # above it hardly a position of a normal is found; the rest of the scale is for defects
OPACITY = 0.7  # of the colour of 1
# inferno: its lightness grows evenly, so that it can be read with any colour vision, and in grey
COLOURS: NDArray[np.uint8] = colormaps["inferno"](np.arange(256), bytes=True)[:, :3]


@dataclass(frozen=True)
class Region:
    """A connected region of a heat map."""

    box: tuple[int, int, int, int]  # left, upper, right, lower in pixels of the image; right and lower are outside
    area: float  # its share of the image, above 0 and up to 1
    peak: float  # its largest value


def find_limits(normals: Floats) -> tuple[float, float]:
    """The values that become 0 and 1, from held-out normals' smoothed maps.

    Their median becomes 0 and their 99.9th percentile a half: faint and strong defects differ in colour.
    """
    low, high = np.percentile(normals, [LOW, HIGH])
    return float(low), float(low + (high - low) / USUAL)


def scale(values: ArrayLike, low: float, high: float) -> Floats:
    """(values − low) / (high − low), clipped to 0..1."""
    if not low < high:
        raise InputError(f"The scale of a heat map is {low} to {high}; the first must be below the second")
    return np.clip((np.asarray(values, dtype=np.float32) - low) / (high - low), 0, 1)


def find_regions(heat: ArrayLike, level: float, size: tuple[int, int]) -> list[Region]:
    """The connected regions of a heat map (h, w) above a level, the largest first; corners connect.

    ``size`` is width and height of the image, in whose pixels the boxes are.
    """
    values = np.asarray(heat)
    numbers, _ = label(values > level, structure=np.ones((3, 3)))
    found = []
    for number, place in enumerate(find_objects(numbers), start=1):
        inside = values[place][numbers[place] == number]
        (upper, lower), (left, right) = map(_pixels, place, values.shape, size[::-1])
        found.append(Region((left, upper, right, lower), inside.size / values.size, float(inside.max())))
    return sorted(found, key=lambda region: (-region.area, region.box))


def overlay(image: Image.Image, heat: ArrayLike) -> Image.Image:
    """The image (RGB) with a heat map over it, (h, w) of 0..1.

    Opacity grows with the square of the value: what is common among normals hardly covers the image.
    """
    levels = Image.fromarray(np.rint(255 * resize(heat, image.size)).astype(np.uint8))
    coloured = levels.copy()
    coloured.putpalette(COLOURS.tobytes())
    return Image.composite(
        coloured.convert("RGB"), image.convert("RGB"), levels.point(lambda level: OPACITY * level**2 / 255)
    )


def to_jpeg(image: Image.Image, side: int) -> bytes:
    """A copy of at most ``side`` pixels a side."""
    small, content = image.copy(), io.BytesIO()
    small.thumbnail((side, side))
    small.save(content, format="jpeg", quality=85)
    return content.getvalue()


def _pixels(cells: slice, n_cells: int, n_pixels: int) -> tuple[int, int]:
    """The pixels that some cells of a grid cover along one side, the first and the one after the last."""
    return cells.start * n_pixels // n_cells, math.ceil(cells.stop * n_pixels / n_cells)
