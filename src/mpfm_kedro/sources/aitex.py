"""AITEX: fabrics of 4096×256 pixels, cut into patches of 256×256.

``NODefect_images/<fabric>/*.png`` give the normals. ``Defect_images/<n>_<code>_<fabric>.png`` with their
``Mask_images/<name>_mask.png`` give the anomalies: the patches with a marked pixel, of the class of the code.
The clean patches of defective images are dropped. Two images have two masks each, which are merged; the
published 183 anomalies exclude these images, hence 185 here.
"""

import re
from collections import defaultdict
from pathlib import Path

from mpfm_kedro.sources.layout import Layout, Rows, subfolders
from mpfm_kedro.sources.masks import Box, holds_defect, image_size, read_mask
from mpfm_kedro.sources.samples import format_crop
from mpfm_kedro.sources.source import Counts, Source

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


def patches(width: int, height: int) -> list[Box]:
    """Boxes of 256 pixels along the width; the last is narrower where the width is no multiple."""
    return [(left, 0, min(left + PATCH, width), height) for left in range(0, width, PATCH)]


def _rows(layout: Layout) -> Rows:
    yield from _normal_rows(layout)
    images = {file.stem: file for file in layout.images(layout.folder / "Defect_images")}
    masks = _masks_by_image(layout)
    for name in sorted(set(masks) - set(images)):
        raise layout.error(f"{masks[name][0]} has no image {name}.png in Defect_images")
    for name, image in images.items():
        if name in masks:
            yield from _marked_rows(layout, image, masks[name])
        elif name == WITHOUT_MASK:
            layout.warn("%s was published without a mask and is skipped", image)
        else:
            raise layout.error(f"{image} has no mask {name}_mask.png in Mask_images")


def _normal_rows(layout: Layout) -> Rows:
    parent = layout.inner("NODefect_images")
    if not (fabrics := subfolders(parent)):
        raise layout.error(f"{parent} should hold one folder for each fabric, and holds none")
    for image in (image for fabric in fabrics for image in layout.images(fabric)):
        # A broken file keeps its rows in the split; ingestion excludes it.
        width, height = image_size(image) or PUBLISHED_SIZE
        _check_height(layout, image, height)
        for box in patches(width, height)[:NORMAL_PATCHES]:
            yield layout.sample(image, crop=format_crop(box), item=layout.path(image))


def _masks_by_image(layout: Layout) -> dict[str, list[Path]]:
    masks: dict[str, list[Path]] = defaultdict(list)
    for file in layout.images(layout.folder / "Mask_images"):
        match = MASK_NAME.fullmatch(file.stem)
        if match is None:
            raise layout.error(f"{file} is not a mask; expected are names like 0001_002_00_mask.png")
        masks[match["image"]].append(file)
    return masks


def _marked_rows(layout: Layout, image: Path, masks: list[Path]) -> Rows:
    marked = read_mask(masks, image, layout.title)
    height, width = marked.shape
    _check_height(layout, image, height)
    if not marked.any():
        layout.warn("the mask %s is all black: no anomaly from %s", masks[0], image.name)
    more = {"mask_path": "|".join(map(layout.path, masks)), "item": layout.path(image)}
    for box in patches(width, height):
        if holds_defect(marked, box):
            yield layout.sample(image, _defect_class(layout, image), crop=format_crop(box), **more)


def _defect_class(layout: Layout, image: Path) -> str:
    _, code, *_ = f"{image.stem}_".split("_")
    if code not in CLASSES:
        known = ", ".join(f"{key} {name}" for key, name in CLASSES.items())
        raise layout.error(f"{image}: the second field is not a known defect; known are {known}")
    return CLASSES[code]


def _check_height(layout: Layout, image: Path, height: int) -> None:
    """Another height means a rescaled copy, whose patches would show another stretch of fabric."""
    if height != PATCH:
        raise layout.error(f"{image} is {height} pixels high; the published images are {PATCH}")


SOURCE = Source(
    name="aitex",
    title="AITEX",
    obtain="AITEX, the Textile Research Institute in Alcoy (AITEX Fabric Image Database)",
    expected=["NODefect_images", "Defect_images", "Mask_images"],
    counts={"": Counts(train=1692, test=564, anomalies=185)},
    rows=_rows,
)
