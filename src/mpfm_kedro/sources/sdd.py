"""SDD (KolektorSDD): surfaces of commutators, ``kos<NN>/Part<N>.jpg`` with ``Part<N>_label.bmp``.

Each image is three samples, strips along its height; a strip is an anomaly if its part of the mask is not
empty. The strips of one item belong together (``group``). The paper's table prints 594 training normals; the
strips of the published images give 857.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import find_folder, required_folder, required_images, subfolders
from mpfm_kedro.sources.masks import Box, holds_defect, read_mask
from mpfm_kedro.sources.samples import format_crop, sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

TITLE = "SDD (KolektorSDD)"
OBTAIN = "the Visual Cognitive Systems Laboratory, University of Ljubljana (KolektorSDD)"
ITEM = re.compile(r"kos\d+")
MASK_SUFFIX = "_label"


def locate(root: Path) -> Path:
    """The folder of the items."""
    return find_folder(root / "sdd", TITLE, ["kos[0-9]*"], OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """Three strips of every image of every item."""
    rows: list[dict[str, Any]] = []
    for item in subfolders(folder):
        if not ITEM.fullmatch(item.name):
            raise InputError(f"{TITLE}: unknown folder {item}; expected are kos01, kos02, ...")
        rows.extend(_item_rows(folder, required_folder(item, TITLE)))
    return sample_table(rows)


def strips(width: int, height: int) -> list[Box]:
    """Three boxes that share the height, the last with the remainder."""
    edges = [0, height // 3, 2 * height // 3, height]
    return [(0, upper, width, lower) for upper, lower in pairwise(edges)]


def _item_rows(folder: Path, item: Path) -> Iterator[dict[str, Any]]:
    files = {file.stem: file for file in required_images(item, TITLE)}
    for stem, file in files.items():
        part = stem.removesuffix(MASK_SUFFIX)
        if part != stem:
            if part not in files:
                raise InputError(f"{TITLE}: {file} has no image {part}.jpg beside it")
        elif stem + MASK_SUFFIX not in files:
            raise InputError(f"{TITLE}: {file} has no mask {stem}{MASK_SUFFIX}.bmp beside it")
        else:
            yield from _strip_rows(folder, file, files[stem + MASK_SUFFIX])


def _strip_rows(folder: Path, image: Path, mask: Path) -> Iterator[dict[str, Any]]:
    marked = read_mask([mask], image, TITLE)
    height, width = marked.shape
    for box in strips(width, height):
        label = int(holds_defect(marked, box))
        yield sample(
            "sdd",
            image.relative_to(folder).as_posix(),
            label,
            "defect" if label else "",
            crop=format_crop(box),
            mask_path=mask.relative_to(folder).as_posix(),
            group=image.parent.name,
        )


SOURCE = Source(
    name="sdd",
    title=TITLE,
    licence="CC BY-NC-SA 4.0",
    obtain=OBTAIN,
    counts={"": Counts(train=857, test=286, anomalies={"defect": 54})},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
