"""MVTec AD: fifteen categories of objects and textures, each with its own split and its own defect classes.

``<category>/train/good`` and ``test/good`` are normal, each ``test/<defect>`` is a class of anomalies with
masks in ``ground_truth/<defect>/<name>_mask.png``. A copy may hold some of the categories only.
"""

from pathlib import Path

from mpfm_kedro.sources.layout import Layout, Rows, subfolders
from mpfm_kedro.sources.source import Counts, Source

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


def _rows(layout: Layout) -> Rows:
    layout.refuse_others(layout.folder, CATEGORIES)
    for category in subfolders(layout.folder):
        folder, classes = layout.inner(category.name), CATEGORIES[category.name][1].split()
        layout.refuse_others(layout.inner(category.name, "train"), ["good"])
        for split in ("train", "test"):
            yield from layout.samples(folder / split / "good", category=category.name, split=split)
        for defect, images in layout.class_folders(folder / "test", ["good", *classes]).items():
            if defect != "good":
                masks = folder / "ground_truth" / defect
                yield from _defect_rows(layout, images, masks, category.name)


def _defect_rows(layout: Layout, images: Path, masks: Path, category: str) -> Rows:
    mask_of = {mask.stem: mask for mask in layout.images(masks)}
    for image in layout.images(images):
        mask = mask_of.get(f"{image.stem}_mask")
        if mask is None:
            raise layout.error(f"{image} has no mask; expected is {masks / image.stem}_mask.png")
        yield layout.sample(image, images.name, mask, category=category)


SOURCE = Source(
    name="mvtec_ad",
    title="MVTec AD",
    licence="CC BY-NC-SA 4.0",
    obtain="MVTec Software GmbH, https://www.mvtec.com/company/research/datasets/mvtec-ad",
    expected=sorted(CATEGORIES),
    counts={category: counts for category, (counts, _) in CATEGORIES.items()},
    split="own",
    rows=_rows,
)
