"""Decoding: whatever a file holds becomes RGB of eight bits, or a named problem.

Images of eight bits are taken as they are. Deeper ones (integers of more bits, floating point) are scaled by one range
of values, the same for all images of a dataset. Colour profiles are not applied.
"""

import io
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from mpfm_kedro.sources.samples import parse_crop

VERSION = 1  # raised when a change of the code changes decoded or cropped pixels
ARRAY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BYTES_PER_PIXEL = 12  # three numbers of 32 bits
MIN_LIMIT = 64_000_000  # bytes of a file with few pixels, such as one with metadata or several frames
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
BITS_PER_SAMPLE = 258  # of a TIFF
OTHER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
OTHER_ORDER = {f"{colours};16{order}": f"{colours};16{OTHER[order]}" for colours in ("RGB", "RGBA") for order in OTHER}
INSTEAD = "save it as PNG or .npy"
FIRST_FRAME = "only the first of several frames is used"
TURNED = "turned upright, as the EXIF tag says"

# An image of eight bits, or deeper values (height, width) or (height, width, 3).
Pixels = Image.Image | np.ndarray


class UnusableImageError(ValueError):
    """An image that cannot be decoded, or should not be."""


def read_file(path: Path, max_pixels: int) -> bytes:
    """The content of a regular file of at most ``BYTES_PER_PIXEL`` for each of ``max_pixels``.

    Pipes would wait for ever, and devices and sparse files would fill the memory.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnusableImageError("it is not a regular file")
    if status.st_size > max(MIN_LIMIT, max_pixels * BYTES_PER_PIXEL):
        raise UnusableImageError(
            f"{status.st_size / 1e6:,.0f} MB, more than images up to ingestion.max_megapixels = "
            f"{max_pixels / 1e6:g} need"
        )
    return path.read_bytes()


def decode(path: str, content: bytes, max_pixels: int, crop: str = "", pixel_range: str = "") -> Image.Image:
    """The content of a file, or a crop of it, as RGB; ``pixel_range`` ("0..4095") is for deep images alone."""
    pixels, _ = open_image(path, content, max_pixels)
    return cut(to_rgb(pixels, pixel_range), crop)


def cut(image: Image.Image, crop: str) -> Image.Image:
    """The crop ("left,upper,right,lower") of an image, or all of it."""
    box = parse_crop(crop)
    return image.crop(box) if box else image


def parse_range(pixel_range: str) -> tuple[float, float]:
    """The lowest and the highest value of a range as the table writes it."""
    low, high = (float(part) for part in pixel_range.split(".."))
    return low, high


def to_rgb(pixels: Pixels, pixel_range: str = "") -> Image.Image:
    """Three channels of eight bits; deep values are scaled by the range, transparent pixels become black."""
    if isinstance(pixels, np.ndarray):
        if not pixel_range:
            raise UnusableImageError(f"values of {pixels.dtype} need a range, see ingestion.pixel_range")
        return scale(pixels, *parse_range(pixel_range))
    if is_transparent(pixels):
        image = pixels.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    return pixels if pixels.mode == "RGB" else pixels.convert("RGB")


def scale(values: np.ndarray, low: float, high: float) -> Image.Image:
    """RGB of round(255 · (x - low) / (high - low)) of each value x, clipped to 0..255."""
    shares = (values.astype(np.float32) - np.float32(low)) / np.float32(high - low)
    return Image.fromarray(np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)).convert("RGB")


def is_transparent(image: Image.Image) -> bool:
    """Whether an image has a channel or a colour for transparency."""
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def open_image(path: str, content: bytes, max_pixels: int) -> tuple[Pixels, list[str]]:
    """What a file shows, upright, and what was done to get there; more than ``max_pixels`` are refused undecoded."""
    if path.lower().endswith(".npy"):
        return _open_array(content, max_pixels), []
    image = _identify(content)
    _refuse_large(image.width, image.height, max_pixels)
    done = [FIRST_FRAME] if _has_frames(image) else []
    if _is_deep_colour(image):
        low = _identify(content)
        low.tile = [_low_bytes(tile) for tile in image.tile]
        upright, turned = _upright(image)
        return _join(np.asarray(upright), np.asarray(_upright(low)[0])), done + turned
    upright, turned = _upright(image)
    deep = upright.mode.startswith("I") or upright.mode == "F"
    return (_finite(np.asarray(upright)) if deep else upright), done + turned


def _identify(content: bytes) -> ImageFile:
    """The image in a file, not decoded yet."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:
        kind = f"TIFF of a kind that is not read; {INSTEAD}" if content[:4] in TIFF else ""
        raise UnusableImageError(kind or "not an image that can be identified") from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _has_frames(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # of a damaged second frame; the first may be whole
        return True


def _upright(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """The decoded image as it is to be looked at, and whether it was turned to get there."""
    turned = _orientation(image) in UPRIGHT
    image.load()
    orientation = _orientation(image)  # a PNG may have it last; a TIFF turns itself and has it no more
    if orientation in UPRIGHT:
        image, turned = image.transpose(UPRIGHT[orientation]), True
    return image, [TURNED] * turned


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow's parser lets any error through, and the pixels may be whole
        return 1


def _is_deep_colour(image: ImageFile) -> bool:
    """Whether the file has colours of more than eight bits, of which Pillow keeps the upper ones."""
    if image.mode.startswith("I") or image.mode == "F":
        return False
    if isinstance(image, TiffImageFile):
        return max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))) > 8
    return isinstance(image, PngImageFile) and any(str(tile.args).endswith(";16B") for tile in image.tile)


def _low_bytes(tile: Any) -> Any:
    """A part of the file read in the other byte order: the upper eight of its sixteen bits are then the lower ones."""
    name, *more = [tile.args] if isinstance(tile.args, str) else tile.args
    if name not in OTHER_ORDER:
        raise UnusableImageError(f"more than eight bits in a layout that is not read ({name}); {INSTEAD}")
    return tile._replace(args=(OTHER_ORDER[name], *more) if more else OTHER_ORDER[name])


def _join(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Colours of sixteen bits (height, width, 3) from their bytes; transparent pixels become black."""
    values = high.astype(np.uint16) * 256 + low
    if values.shape[2] == 3:
        return values
    return np.asarray(values[..., :3] * (values[..., 3:] / np.float32(65535))).astype(np.uint16)


def _open_array(content: bytes, max_pixels: int) -> Pixels:
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
    array = np.load(file, allow_pickle=False)
    if array.ndim == 3:
        array = array[:, :, :3] if array.shape[2] >= 3 else array[:, :, 0]
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(array))
    if array.dtype.kind not in "iuf":
        raise UnusableImageError(f"an array of {array.dtype}; an image has integers or floating point")
    return _finite(array)


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise UnusableImageError("some of its values are not finite")
    return values


def _refuse_large(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise UnusableImageError(
            f"{width} x {height} pixels, more than ingestion.max_megapixels = {max_pixels / 1e6:g}"
        )
