"""Masks of defects, read to label crops and for pixel measures. Images are not decoded: their header is enough."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from mpfm_kedro.errors import InputError

ON_ITS_SIDE = 5  # EXIF orientations from here on exchange width and height
Box = tuple[int, int, int, int]


def image_size(file: Path) -> tuple[int, int] | None:
    """Width and height upright, from the header; None for a broken file, which ingestion names and excludes."""
    try:
        with Image.open(file) as image:
            tagged = image.format in ("JPEG", "MPO", "WEBP")  # a TIFF is upright; a PNG would be read to its end
            on_its_side = tagged and image.getexif().get(ExifTags.Base.Orientation, 1) >= ON_ITS_SIDE
            return image.size[::-1] if on_its_side else image.size
    except Exception:  # parsers of damaged files let any error through
        return None


def check_mask_size(mask: Path, image: Path, title: str) -> None:
    """Raise where mask and image differ in size: such a mask belongs to another image or another scale."""
    size, expected = image_size(mask), image_size(image)
    if size is None:
        raise InputError(f"{title}: cannot read the mask {mask}")
    if expected is not None and size != expected:
        raise InputError(
            f"{title}: the mask {mask} is {size[0]}x{size[1]}, "
            f"and its image {image} is {expected[0]}x{expected[1]}; they must be of one size"
        )


def read_mask(masks: Sequence[Path], image: Path, title: str) -> NDArray[np.bool_]:
    """Where any of the masks of an image is not black: (height, width) of booleans; they have the image's size."""
    for mask in masks:
        check_mask_size(mask, image, title)
    return merge_masks(masks, title)


def merge_masks(masks: Sequence[Path], title: str) -> NDArray[np.bool_]:
    """Where any of some masks is not black: (height, width) of booleans."""
    marked = []
    for mask in masks:
        try:
            with Image.open(mask) as opened:
                marked.append(_marked_pixels(opened))
        except Exception as error:  # likewise
            raise InputError(f"{title}: cannot read the mask {mask}: {error}") from error
    if len({part.shape for part in marked}) != 1:
        raise InputError(f"{title}: the masks {', '.join(map(str, masks))} differ in size")
    return np.logical_or.reduce(marked)


def _marked_pixels(mask: Image.Image) -> NDArray[np.bool_]:
    """The pixels that are not black: a palette counts by its colours, and opaque black is not marked."""
    if mask.mode in ("P", "PA"):
        mask = mask.convert("RGB")
    values = np.asarray(mask)
    if mask.mode in ("LA", "RGBA"):
        values = values[..., :-1]
    return np.asarray(values.any(axis=-1) if values.ndim == 3 else values != 0)


def holds_defect(marked: NDArray[np.bool_], box: Box) -> bool:
    """Whether any marked pixel lies in the box."""
    left, upper, right, lower = box
    return bool(marked[upper:lower, left:right].any())
