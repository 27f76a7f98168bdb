"""AITEX: fabrics of 4096×256 pixels, cut into patches of 256×256.

``NODefect_images/<fabric>/*.png`` give the normals. ``Defect_images/<n>_<code>_<fabric>.png`` with their
``Mask_images/<name>_mask.png`` give the anomalies: the patches with a marked pixel, of the class of the code.
The clean patches of defective images are dropped. Two images have two masks each, which are merged; the
published 183 anomalies exclude these images, hence 185 here.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import find_folder, required_folder, required_images, subfolders
from mpfm_kedro.sources.masks import Box, holds_defect, image_size, read_mask
from mpfm_kedro.sources.samples import format_crop, sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

logger = logging.getLogger(__name__)
TITLE = "AITEX"
OBTAIN = "AITEX, the Textile Research Institute in Alcoy (AITEX Fabric Image Database)"
PATCH = 256
NORMAL_PATCHES = 16
PUBLISHED_SIZE = (4096, 256)
WITHOUT_MASK = "0100_025_08"
MASK_NAME = re.compile(r"(?P<image>.+)_mask\d*")
CLASSES = {
    "002": "broken_end",
    "006": "broken_yarn",
    "010": "broken_pick",
    "016": "weft_curling",
    "019": "fuzzyball",
    "022": "cut_selvage",
    "023": "crease",
    "025": "warp_ball",
    "027": "knots",
    "029": "contamination",
    "030": "nep",
    "036": "weft_crack",
}


def locate(root: Path) -> Path:
    """The folder of the three image folders."""
    return find_folder(root / "aitex", TITLE, ["NODefect_images", "Defect_images", "Mask_images"], OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """Patches of the defect-free images, and the marked patches of the defective ones."""
    return sample_table([*_normal_rows(folder), *_defect_rows(folder)])


def patches(width: int, height: int) -> list[Box]:
    """Boxes of 256 pixels along the width; the last is narrower where the width is no multiple."""
    return [(left, 0, min(left + PATCH, width), height) for left in range(0, width, PATCH)]


def _normal_rows(folder: Path) -> Iterator[dict[str, Any]]:
    parent = required_folder(folder / "NODefect_images", TITLE)
    fabrics = subfolders(parent)
    if not fabrics:
        raise InputError(f"{TITLE}: {parent} should hold one folder for each fabric, and holds none")
    for image in (image for fabric in fabrics for image in required_images(fabric, TITLE)):
        # A broken file keeps its rows in the split; ingestion excludes it.
        width, height = image_size(image) or PUBLISHED_SIZE
        _check_height(image, height)
        path = image.relative_to(folder).as_posix()
        for box in patches(width, height)[:NORMAL_PATCHES]:
            yield sample("aitex", path, 0, crop=format_crop(box), group=path)


def _defect_rows(folder: Path) -> Iterator[dict[str, Any]]:
    images = {file.stem: file for file in required_images(folder / "Defect_images", TITLE)}
    masks = _masks_by_image(folder / "Mask_images")
    for name in sorted(set(masks) - set(images)):
        raise InputError(f"{TITLE}: {masks[name][0]} has no image {name}.png in Defect_images")
    for name, image in images.items():
        if name in masks:
            yield from _marked_rows(folder, image, masks[name])
        elif name == WITHOUT_MASK:
            logger.warning("%s: %s was published without a mask and is skipped", TITLE, image)
        else:
            raise InputError(f"{TITLE}: {image} has no mask {name}_mask.png in Mask_images")


def _masks_by_image(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    for file in required_images(folder, TITLE):
        match = MASK_NAME.fullmatch(file.stem)
        if match is None:
            raise InputError(f"{TITLE}: {file} is no mask; expected are names like 0001_002_00_mask.png")
        found[match["image"]].append(file)
    return found


def _marked_rows(folder: Path, image: Path, masks: list[Path]) -> Iterator[dict[str, Any]]:
    marked = read_mask(masks, image, TITLE)
    height, width = marked.shape
    _check_height(image, height)
    if not marked.any():
        logger.warning("%s: the mask %s is all black: no anomaly from %s", TITLE, masks[0], image.name)
    path = image.relative_to(folder).as_posix()
    mask_path = "|".join(mask.relative_to(folder).as_posix() for mask in masks)
    for box in patches(width, height):
        if holds_defect(marked, box):
            more = {"crop": format_crop(box), "mask_path": mask_path, "group": path}
            yield sample("aitex", path, 1, _defect_class(image), **more)


def _defect_class(image: Path) -> str:
    code = image.stem.split("_")[1] if "_" in image.stem else ""
    if code not in CLASSES:
        known = ", ".join(f"{key} {name}" for key, name in CLASSES.items())
        raise InputError(f"{TITLE}: {image}: the second field is no known defect; known are {known}")
    return CLASSES[code]


def _check_height(image: Path, height: int) -> None:
    """Another height means a rescaled copy, whose patches would show another stretch of fabric."""
    if height != PATCH:
        raise InputError(f"{TITLE}: {image} is {height} pixels high; the published images are {PATCH}")


SOURCE = Source(
    name="aitex",
    title=TITLE,
    licence="see the publisher",
    obtain=OBTAIN,
    counts={"": Counts(train=1692, test=564, anomalies=185)},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
