"""Inspect images with an exported model; needs numpy, pillow and onnxruntime.

python inspect_onnx.py FOLDER_OF_THE_EXPORT IMAGE…

Images of more than eight bits and arrays are refused: they need the ``pixel_range`` of the card, as predict uses it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 100_000_000
BITS_PER_SAMPLE = 258  # of a TIFF


def read(file: Path) -> Image.Image:
    """RGB, upright, with black in place of transparent pixels."""
    if not file.is_file():
        raise ValueError("it is not a regular file")
    Image.MAX_IMAGE_PIXELS = None
    image = Image.open(file)
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are too many")
    deep_tiff = image.format == "TIFF" and max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))) > 8
    deep_png = image.format == "PNG" and any(str(tile.args).endswith(";16B") for tile in image.tile)
    if image.mode[0] in "IF" or deep_tiff or deep_png:
        raise ValueError("it has more than eight bits per channel")
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert("RGB")


folder, *images = map(Path, sys.argv[1:])
threshold = json.loads((folder / "card.json").read_text(encoding="utf-8"))["threshold"]
network = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
for file in images:
    try:
        rgb = read(file)
    except UnidentifiedImageError:
        print(f"error: {file} is not an image")
        continue
    except Exception as error:  # Pillow's parsers let any error of a damaged file through
        print(f"error: {file} cannot be used: {error}")
        continue
    score, heat_map, alike = network.run(["score", "heat_map", "likeness"], {"pixels": np.asarray(rgb)[None]})
    good = threshold["good"] is not None and score[0] <= threshold["good"] and alike[0] <= threshold["alike"]
    decision = "defective" if score[0] > threshold["defective"] else "good" if good else "uncertain"
    row, column = np.unravel_index(heat_map[0].argmax(), heat_map[0].shape)
    x, y = (np.array([column, row]) + 0.5) / heat_map[0].shape[::-1] * rgb.size
    print(f"{decision} {score[0]:.4f} hottest at {x:.0f},{y:.0f} {file}")
