"""Views of an image: the original, flipped or rotated, or with a patch of itself pasted elsewhere (CutMix)."""

import hashlib
import math

import numpy as np
from PIL import Image

VERSION = 1  # raised when a change of the code changes the pixels of a view
ORIGINAL = "original"
CUTMIX = "cutmix-"
AUGMENTATIONS = {
    "hflip": Image.Transpose.FLIP_LEFT_RIGHT,
    "vflip": Image.Transpose.FLIP_TOP_BOTTOM,
    "rot90": Image.Transpose.ROTATE_90,
    "rot180": Image.Transpose.ROTATE_180,
    "rot270": Image.Transpose.ROTATE_270,
    "transpose": Image.Transpose.TRANSPOSE,
    "transverse": Image.Transpose.TRANSVERSE,
}
AREA = (0.02, 0.15)
ASPECT = (0.3, 3.3)
JITTER = 0.1


def apply_view(image: Image.Image, view: str, content_hash: str, crop: str = "") -> Image.Image:
    """The image (RGB) in this view; the same file, crop and view give the same pixels on every machine."""
    if view == ORIGINAL:
        return image
    if view in AUGMENTATIONS:
        return image.transpose(AUGMENTATIONS[view])
    name = " ".join(part for part in (content_hash, crop, view) if part)
    seed = hashlib.sha256(name.encode()).digest()[:8]
    return cutmix(image, np.random.default_rng(int.from_bytes(seed, "little")))


def cutmix(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Paste a patch of the image elsewhere in it: 2–15 % of the area, aspect log-uniform, colours jittered.

    Returns an image of the same size that differs from the original inside one rectangle.
    """
    pixels = np.asarray(image).copy()
    height, width = pixels.shape[:2]
    area = rng.uniform(*AREA) * height * width
    aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
    h = min(height, max(1, round(math.sqrt(area * aspect))))
    w = min(width, max(1, round(math.sqrt(area / aspect))))
    top, left = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    patch = jitter_colours(pixels[top : top + h, left : left + w].astype(np.float32), rng)
    top, left = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    pixels[top : top + h, left : left + w] = patch
    return Image.fromarray(pixels)


def jitter_colours(patch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Brightness, contrast and saturation of a patch (h, w, 3), each changed by at most a tenth."""
    brightness, contrast, saturation = rng.uniform(1 - JITTER, 1 + JITTER, size=3)
    patch = patch * brightness
    patch = patch.mean() + (patch - patch.mean()) * contrast
    grey = patch.mean(axis=2, keepdims=True)
    patch = grey + (patch - grey) * saturation
    return np.clip(np.rint(patch), 0, 255).astype(np.uint8)
