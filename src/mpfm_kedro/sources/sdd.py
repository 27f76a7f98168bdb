"""SDD (KolektorSDD): surfaces of commutators, ``kos<NN>/Part<N>.jpg`` with ``Part<N>_label.bmp``.

Each image is three samples, strips along its height; a strip is an anomaly if its part of the mask is not
empty. The strips of one item belong together (``item``). The paper's table prints 594 training normals; the
strips of the published images give 857.
"""

import re
from itertools import pairwise

from mpfm_kedro.sources.layout import Layout, Rows, subfolders
from mpfm_kedro.sources.masks import Box, holds_defect, read_mask
from mpfm_kedro.sources.samples import format_crop
from mpfm_kedro.sources.source import Counts, Source

ITEM = re.compile(r"kos\d+")
MASK_SUFFIX = "_label"


def strips(width: int, height: int) -> list[Box]:
    """Three boxes that share the height, the last with the remainder."""
    edges = [0, height // 3, 2 * height // 3, height]
    return [(0, upper, width, lower) for upper, lower in pairwise(edges)]


def _rows(layout: Layout) -> Rows:
    for item in subfolders(layout.folder):
        if not ITEM.fullmatch(item.name):
            raise layout.error(f"unknown folder {item}; expected are kos01, kos02, ...")
        files = {file.stem: file for file in layout.images(item)}
        masks = {stem.removesuffix(MASK_SUFFIX): file for stem, file in files.items() if stem.endswith(MASK_SUFFIX)}
        images = {stem: file for stem, file in files.items() if not stem.endswith(MASK_SUFFIX)}
        for stem, mask in masks.items():
            if stem not in images:
                raise layout.error(f"{mask} has no image {stem}.jpg beside it")
        for stem, image in images.items():
            if stem not in masks:
                raise layout.error(f"{image} has no mask {stem}{MASK_SUFFIX}.bmp beside it")
            marked = read_mask([masks[stem]], image, layout.title)
            for box in strips(marked.shape[1], marked.shape[0]):
                more = {"crop": format_crop(box), "mask_path": layout.path(masks[stem]), "item": item.name}
                yield layout.sample(image, "defect" if holds_defect(marked, box) else "", **more)


SOURCE = Source(
    name="sdd",
    title="SDD (KolektorSDD)",
    licence="CC BY-NC-SA 4.0",
    obtain="the Visual Cognitive Systems Laboratory, University of Ljubljana (KolektorSDD)",
    expected=["kos[0-9]*"],
    counts={"": Counts(train=857, test=286, anomalies={"defect": 54})},
    rows=_rows,
)
