"""Values of the positions of images, as a picture: on a finer grid, and smoothed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.proportions import cut_padding

FINER = 4  # grid of the picture against that of the positions: smooth to the eye, and no larger for a larger image
SIGMA = 0.5  # of the Gaussian, in positions

Floats = NDArray[np.float32]


def smooth_maps(positions: ArrayLike, sizes: Sequence[tuple[int, int]] | None = None) -> Floats:
    """Values of positions on a finer grid (bilinear), convolved with a Gaussian: (n, H', W') → (n, 4 H', 4 W').

    Args:
        positions: values of the positions of n images, (n, H', W').
        sizes: width and height of images that were padded to squares; their maps are those without the padding.
    """
    values = np.asarray(positions, dtype=np.float32)
    if values.ndim != 3 or 0 in values.shape[1:]:
        raise InputError(f"Position maps have shape {values.shape}; expected is (images, height, width)")
    if not np.isfinite(values).all():
        raise InputError("A position map has values that are not finite")
    height, width = values.shape[1:]
    finer = np.empty((len(values), FINER * height, FINER * width), dtype=np.float32)
    for place, one in enumerate(values):
        finer[place] = resize(one, (FINER * width, FINER * height))
    smooth = gaussian_filter(finer, (0, FINER * SIGMA, FINER * SIGMA), mode="nearest")
    for place, size in enumerate(sizes or ()):
        smooth[place] = cut_padding(smooth[place], size)
    return smooth


def resize(values: ArrayLike, size: tuple[int, int]) -> Floats:
    """Bilinear: (h, w) → (height, width) of ``size`` = width, height; borders of both grids coincide."""
    image = Image.fromarray(np.ascontiguousarray(values, dtype=np.float32))
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR))
