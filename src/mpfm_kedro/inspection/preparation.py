"""From whatever a user has, a file, an array or a PIL image, to what the backbones of a model read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from mpfm_kedro.backbones.extraction import to_pixels
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.decoding import Pixels, UnusableImageError, open_image, parse_range, read_file, to_rgb

MAX_MEGAPIXELS = 100.0
MAX_SHARE_OUTSIDE = 0.5  # of the pixels of a deep image outside of the range of the model

ImageLike = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True)
class Prepared:
    """An image as the backbones read it: (3, S, S) of bytes for each of them, and the size it had."""

    pixels: tuple[Tensor, ...]
    size: tuple[int, int]


def prepare(
    image: ImageLike,
    sizes: Sequence[int],
    pixel_range: str,
    max_megapixels: float = MAX_MEGAPIXELS,
    keep_proportions: bool = False,
) -> Prepared:
    """An image as the backbones read it, resized as in training."""
    rgb = read_image(image, pixel_range, max_megapixels)
    return Prepared(tuple(to_pixels(rgb, size, keep_proportions) for size in sizes), rgb.size)


def read_image(image: ImageLike, pixel_range: str, max_megapixels: float = MAX_MEGAPIXELS) -> Image.Image:
    """RGB of whatever is given; bit depth and range are those of the images that the model has learned from."""
    try:
        if isinstance(image, str | Path):
            content = read_file(Path(image), int(max_megapixels * 1e6))
            return read_content(str(image), content, pixel_range, max_megapixels)
        return _to_rgb(_check_array(image) if isinstance(image, np.ndarray) else image, pixel_range)
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        name = image if isinstance(image, str | Path) else "The image"
        problem = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name} cannot be used: {problem}") from error


def read_content(name: str, content: bytes, pixel_range: str, max_megapixels: float) -> Image.Image:
    """RGB of the content of a file; ``UnusableImageError`` and errors of parsers say why there is none."""
    pixels, _ = open_image(name, content, int(max_megapixels * 1e6))
    return _to_rgb(pixels, pixel_range)


def _to_rgb(pixels: Pixels, pixel_range: str) -> Image.Image:
    """RGB of an image; deep values are clipped to the range of those that the model has learned from.

    A bright spot may be brighter than all before; but most values outside of the range are of another camera.
    """
    if isinstance(pixels, np.ndarray):
        if not pixel_range:
            raise UnusableImageError(f"values of {pixels.dtype}; the model has learned from images of eight bits")
        low, high = parse_range(pixel_range)
        if np.mean((pixels < low) | (pixels > high)) > MAX_SHARE_OUTSIDE:
            values = f"values of {pixels.min():g} to {pixels.max():g}"
            raise UnusableImageError(f"{values}; those that the model has learned from are in {pixel_range}")
    elif not isinstance(pixels, Image.Image):
        raise UnusableImageError(f"{type(pixels).__name__} is neither a path nor an array nor a PIL image")
    return to_rgb(pixels, pixel_range)


def _check_array(array: np.ndarray) -> Pixels:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or 0 in array.shape:
        raise UnusableImageError(f"an array of shape {array.shape}; an image is (height, width) or (height, width, 3)")
    if array.dtype == np.uint8:
        return Image.fromarray(array)
    if array.dtype.kind not in "uif":
        raise UnusableImageError(f"values of {array.dtype}; they must be integers or floating point")
    if not np.isfinite(array).all():
        raise UnusableImageError("some of its values are not finite")
    return array[..., :3] if array.ndim == 3 else array
