"""Images of any proportions in a square: padded at both ends of the shorter side, and heat maps without the padding."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pad_to_square(image: Image.Image) -> Image.Image:
    """An RGB image in the middle of a square of the mean colour of its border; a square image as it is."""
    width, height = image.size
    if width == height:
        return image
    pixels, side = np.asarray(image), max(width, height)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    square = Image.new("RGB", (side, side), tuple(np.rint(border.mean(0)).astype(int).tolist()))
    square.paste(image, _corner(image.size))
    return square


def cut_padding(heat: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """The part of a heat map (h, w) of a square that shows the image of this width and height, resized to (h, w)."""
    (left, upper), side = _corner(size), max(size)
    across, down = heat.shape[1] / side, heat.shape[0] / side
    box = (left * across, upper * down, (left + size[0]) * across, (upper + size[1]) * down)
    return np.asarray(Image.fromarray(heat).resize(heat.shape[::-1], Image.Resampling.BILINEAR, box))


def _corner(size: tuple[int, int]) -> tuple[int, int]:
    """Left and upper edge of an image in its square."""
    side = max(size)
    return (side - size[0]) // 2, (side - size[1]) // 2
