"""Synthetic images: striped textures of two kinds with two kinds of defects, drawn when they are first used.

To try the project without a dataset, and for its tests. Results on them say nothing about a method.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from mpfm_kedro.sources.layout import Layout, Rows, new_folder
from mpfm_kedro.sources.source import Counts, Source

NAME = "synthetic"
SIZE = 48
FOLDERS = {"good": 48, "spot": 12, "scratch": 12}
MASKS = "ground_truth"


def locate(root: Path) -> Path:
    """The folder of the images; they are drawn when it is not there."""
    folder = root / NAME
    if not folder.is_dir():
        with new_folder(folder, "draw images in") as partial:
            for kind, number in FOLDERS.items():
                for i in range(number):
                    image, defect = draw(kind, i)
                    _save(image, partial / kind / f"{i:03}.png")
                    if defect.any():
                        _save(255 * defect.astype(np.uint8), partial / MASKS / kind / f"{i:03}_mask.png")
    return folder


def draw(kind: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """One image (48, 48, 3) and where it is defective (48, 48).

    Stripes, upright for even numbers and level for odd ones, and the defect of its kind.
    """
    rng = np.random.default_rng([list(FOLDERS).index(kind), number])
    rows, columns = np.mgrid[:SIZE, :SIZE]
    along = columns if number % 2 == 0 else rows
    grey = 120 + 40 * np.sin(along * rng.uniform(0.7, 0.9) + rng.uniform(0, 6)) + rng.normal(0, 6, (SIZE, SIZE))
    y, x = rng.uniform(12, SIZE - 12, 2)
    defect = np.zeros((SIZE, SIZE), dtype=bool)
    if kind == "spot":
        darkness, radius = rng.uniform(0, 40), rng.uniform(4, 8)
        defect = np.hypot(rows - y, columns - x) < radius
        grey[defect] = darkness
    if kind == "scratch":
        defect = np.abs((rows - y) - rng.uniform(-1, 1) * (columns - x)) < 1.5
        grey[defect] = 250
    return np.repeat(np.clip(grey, 0, 255).astype(np.uint8)[..., None], 3, axis=2), defect


def _save(pixels: np.ndarray, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def _rows(layout: Layout) -> Rows:
    yield from layout.samples(layout.folder / "good")
    for kind in ("spot", "scratch"):
        for image in layout.images(layout.folder / kind):
            yield layout.sample(image, kind, layout.folder / MASKS / kind / f"{image.stem}_mask.png")


SOURCE = Source(
    name=NAME,
    title="Synthetic textures",
    licence="Apache-2.0",
    obtain="nowhere: drawn when they are first used",
    counts={"": Counts(train=36, test=12, anomalies={"spot": 12, "scratch": 12})},
    find=locate,
    rows=_rows,
)
