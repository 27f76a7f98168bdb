"""Inspect images with an exported model; needs numpy, pillow and onnxruntime.

python inspect_onnx.py FOLDER_OF_THE_EXPORT IMAGE…
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

folder, *images = map(Path, sys.argv[1:])
promise = json.loads((folder / "card.json").read_text(encoding="utf-8"))["promise"]
network = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
for image in images:
    rgb = ImageOps.exif_transpose(Image.open(image)).convert("RGB")  # 8 bits; deeper ones: pixel_range of the card
    score, heat_map = network.run(["score", "heat_map"], {"pixels": np.asarray(rgb)[None]})
    good = promise["good"] is not None and score[0] <= promise["good"]
    decision = "defective" if score[0] > promise["defective"] else "good" if good else "uncertain"
    row, column = np.unravel_index(heat_map[0].argmax(), heat_map[0].shape)
    x, y = (np.array([column, row]) + 0.5) / heat_map[0].shape[::-1] * rgb.size
    print(f"{decision} {score[0]:.4f} hottest at {x:.0f},{y:.0f} {image}")
