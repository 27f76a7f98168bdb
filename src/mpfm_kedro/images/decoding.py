"""Decoding: whatever a file holds becomes RGB of eight bits, or a named problem."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from mpfm_kedro.sources.samples import parse_crop

ARRAY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class UnusableImageError(ValueError):
    """An image that cannot be decoded, or should not be."""


def decode(path: str, content: bytes, max_pixels: int, crop: str = "") -> Image.Image:
    """The content of a file, or a crop of it, as RGB."""
    return cut(to_rgb(open_image(path, content, max_pixels)), crop)


def cut(image: Image.Image, crop: str) -> Image.Image:
    """The crop ("left,upper,right,lower") of an image, or all of it."""
    box = parse_crop(crop)
    return image.crop(box) if box else image


def to_rgb(image: Image.Image) -> Image.Image:
    """Three channels of eight bits, whatever the file holds.

    Sixteen bits are scaled by their full range, the same for every image; floating point is clipped to 0..255;
    transparent pixels become black.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        deep = np.asarray(image, dtype=np.float64) / 257
        return Image.fromarray(np.clip(deep, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(np.clip(np.asarray(image), 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    return image.convert("RGB")


def open_image(path: str, content: bytes, max_pixels: int) -> Image.Image:
    """The image in a file, not decoded yet; one of more than ``max_pixels`` is refused."""
    if path.lower().endswith(".npy"):
        return _open_array(content, max_pixels)
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        image = Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:
        raise UnusableImageError("not an image that can be identified") from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    _refuse_large(image.width, image.height, max_pixels)
    return image


def _open_array(content: bytes, max_pixels: int) -> Image.Image:
    """An array (height, width) or (height, width, channels), of which at most three are used."""
    file = io.BytesIO(content)
    try:
        read_header = ARRAY_HEADERS[np.lib.format.read_magic(file)]
        shape = read_header(file)[0]
    except Exception as error:  # numpy's parser lets any error through
        raise UnusableImageError("not an array that can be identified") from error
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UnusableImageError(f"an array of shape {shape}; an image is (height, width) or (height, width, n)")
    _refuse_large(shape[1], shape[0], max_pixels)
    file.seek(0)
    array = np.clip(np.load(file, allow_pickle=False), 0, 255).astype(np.uint8)
    if array.ndim == 3:
        array = array[:, :, :3] if array.shape[2] >= 3 else array[:, :, 0]
    return Image.fromarray(array)


def _refuse_large(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise UnusableImageError(
            f"{width} x {height} pixels, more than ingestion.max_megapixels = {max_pixels / 1e6:g}"
        )
