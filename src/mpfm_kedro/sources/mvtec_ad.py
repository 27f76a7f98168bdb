"""MVTec AD: fifteen categories of objects and textures, each with its own split and its own defect classes.

``<category>/train/good`` and ``test/good`` are normal, each ``test/<defect>`` is a class of anomalies with
masks in ``ground_truth/<defect>/<name>_mask.png``. A copy may hold some of the categories only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import (
    class_folders,
    find_folder,
    refuse_others,
    required_folder,
    required_images,
    subfolders,
)
from mpfm_kedro.sources.masks import check_mask_size
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

TITLE = "MVTec AD"
OBTAIN = "MVTec Software GmbH, https://www.mvtec.com/company/research/datasets/mvtec-ad"
CATEGORIES = {
    "bottle": (Counts(209, 20, 63), "broken_large broken_small contamination"),
    "cable": (
        Counts(224, 58, 92),
        "bent_wire cable_swap combined cut_inner_insulation cut_outer_insulation missing_cable missing_wire "
        "poke_insulation",
    ),
    "capsule": (Counts(219, 23, 109), "crack faulty_imprint poke scratch squeeze"),
    "carpet": (Counts(280, 28, 89), "color cut hole metal_contamination thread"),
    "grid": (Counts(264, 21, 57), "bent broken glue metal_contamination thread"),
    "hazelnut": (Counts(391, 40, 70), "crack cut hole print"),
    "leather": (Counts(245, 32, 92), "color cut fold glue poke"),
    "metal_nut": (Counts(220, 22, 93), "bent color flip scratch"),
    "pill": (Counts(267, 26, 141), "color combined contamination crack faulty_imprint pill_type scratch"),
    "screw": (Counts(320, 41, 119), "manipulated_front scratch_head scratch_neck thread_side thread_top"),
    "tile": (Counts(230, 33, 84), "crack glue_strip gray_stroke oil rough"),
    "toothbrush": (Counts(60, 12, 30), "defective"),
    "transistor": (Counts(213, 60, 40), "bent_lead cut_lead damaged_case misplaced"),
    "wood": (Counts(247, 19, 60), "color combined hole liquid scratch"),
    "zipper": (
        Counts(240, 32, 119),
        "broken_teeth combined fabric_border fabric_interior rough split_teeth squeezed_teeth",
    ),
}


def locate(root: Path) -> Path:
    """The folder of the categories."""
    return find_folder(root / "mvtec_ad", TITLE, sorted(CATEGORIES), OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """Normals and anomalies of every category that is there."""
    refuse_others(folder, CATEGORIES, TITLE)
    return sample_table(row for category in subfolders(folder) for row in _category_rows(folder, category))


def _category_rows(folder: Path, path: Path) -> Iterator[dict[str, Any]]:
    category, inner = path.name, required_folder(path, TITLE)
    refuse_others(required_folder(inner / "train", TITLE), ["good"], TITLE)
    for split in ("train", "test"):
        for image in required_images(inner / split / "good", TITLE):
            name = image.relative_to(folder).as_posix()
            yield sample("mvtec_ad", name, 0, category=category, split=split)
    classes = CATEGORIES[category][1].split()
    for defect, images in class_folders(inner / "test", ["good", *classes], TITLE).items():
        if defect != "good":
            yield from _defect_rows(folder, category, images, inner / "ground_truth" / defect)


def _defect_rows(folder: Path, category: str, images: Path, masks: Path) -> Iterator[dict[str, Any]]:
    mask_of = {mask.stem: mask for mask in required_images(masks, TITLE)}
    for image in required_images(images, TITLE):
        mask = mask_of.get(f"{image.stem}_mask")
        if mask is None:
            raise InputError(f"{TITLE}: {image} has no mask; expected is {masks / image.stem}_mask.png")
        check_mask_size(mask, image, TITLE)
        yield sample(
            "mvtec_ad",
            image.relative_to(folder).as_posix(),
            1,
            images.name,
            category=category,
            mask_path=mask.relative_to(folder).as_posix(),
        )


SOURCE = Source(
    name="mvtec_ad",
    title=TITLE,
    licence="CC BY-NC-SA 4.0",
    obtain=OBTAIN,
    counts={category: counts for category, (counts, _) in CATEGORIES.items()},
    split="own",
    locate=locate,
    list_samples=list_samples,
)
