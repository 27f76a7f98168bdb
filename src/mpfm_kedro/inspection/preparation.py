"""From whatever a user has, a file, an array or a PIL image, to what the backbones of a model read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from mpfm_kedro.backbones.extraction import to_pixels
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.decoding import Pixels, UnusableImageError, decode, to_rgb

MAX_MEGAPIXELS = 100.0

ImageLike = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True)
class Prepared:
    """An image as the backbones read it: (3, S, S) of bytes for each of them, and the size it had."""

    pixels: tuple[Tensor, ...]
    size: tuple[int, int]


def prepare(
    image: ImageLike, sizes: Sequence[int], pixel_range: str, max_megapixels: float = MAX_MEGAPIXELS
) -> Prepared:
    """An image as the backbones read it, resized as in training."""
    rgb = read_image(image, pixel_range, max_megapixels)
    return Prepared(tuple(to_pixels(rgb, size) for size in sizes), rgb.size)


def read_image(image: ImageLike, pixel_range: str, max_megapixels: float = MAX_MEGAPIXELS) -> Image.Image:
    """RGB of whatever is given; bit depth and range are those of the images that the model has learned from."""
    try:
        if isinstance(image, str | Path):
            content = Path(image).read_bytes()
            return decode(str(image), content, int(max_megapixels * 1e6), pixel_range=pixel_range)
        return to_rgb(_from_array(image) if isinstance(image, np.ndarray) else image, pixel_range)
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        name = str(image) if isinstance(image, str | Path) else "The image"
        problem = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name} cannot be used: {problem}") from error


def _from_array(array: np.ndarray) -> Pixels:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or 0 in array.shape:
        raise UnusableImageError(f"an array of shape {array.shape}; an image is (height, width) or (height, width, 3)")
    if array.dtype == np.uint8:
        return Image.fromarray(array)
    if array.dtype.kind not in "uif":
        raise UnusableImageError(f"values of {array.dtype}; they must be integers or floating point")
    return array[..., :3] if array.ndim == 3 else array
