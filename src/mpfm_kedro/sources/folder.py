"""A user's own images: MVTec's layout, or ``good/`` beside one folder for each class of defects.

    train/good, test/good, test/<defect>, and masks, if any, in ground_truth/<defect>/<name>_mask.png
    good, <defect>, and masks, if any, likewise

Folders in these folders belong to them: good/batch1/a.png is a normal.

The first has its own split, unless there is no ``test/good``. Folders of defects may be missing: then there are
only normals to learn from.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import (
    IMAGE_SUFFIXES,
    find_folder,
    image_files,
    nested_images,
    refuse_others,
    subfolders,
)
from mpfm_kedro.sources.masks import check_mask_size
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Source

logger = logging.getLogger(__name__)
TITLE = "Own folder"
LAYOUTS = "either good/ beside one folder for each defect, or train/good, test/good and test/<defect>"
OBTAIN = f"your own images, as {LAYOUTS}"


def locate(root: Path) -> Path:
    """The data root itself if it has images of the layout, else ``folder`` in it."""
    if _has_layout(root):
        return root
    if not root.is_dir():
        problem = "is no folder" if root.exists() else "does not exist"
        raise InputError(f"{TITLE}: data_root {root} {problem}; expected is {LAYOUTS}")
    if (root / "folder").is_dir():
        return find_folder(root / "folder", TITLE, ["good", "train"], OBTAIN)
    raise InputError(f"{TITLE}: data_root {root} has neither good/ nor train/good. {_advice(root)}")


def _has_layout(folder: Path) -> bool:
    return (folder / "good").is_dir() or (folder / "train" / "good").is_dir()


def _advice(root: Path) -> str:
    """What to do about a folder without the layout: name the one that was meant, or arrange the images."""
    if meant := next((folder for folder in [root.parent, *subfolders(root)] if _has_layout(folder)), None):
        return f"{meant} has: is data_root={meant} meant?"
    folders = ", ".join(path.name for path in subfolders(root))
    holds = f"the folders {folders}" if folders else f"{len(image_files(root))} images and no folder"
    return f"It holds {holds}. Call the folder of good images good; expected is {LAYOUTS}"


def own_name(root: Path) -> str:
    """What results of these images are called: as their folder, in characters that suit any path."""
    try:
        folder = locate(root)
    except InputError:  # which will be said when the images are read
        return "folder"
    return re.sub(r"[^\w.-]+", "_", folder.resolve().name).strip("._-") or "folder"


def list_samples(folder: Path) -> pd.DataFrame:
    """The images of whichever layout is there."""
    beside, parted = (folder / "good").is_dir(), (folder / "train" / "good").is_dir()
    if beside and parted:
        raise InputError(f"{TITLE}: {folder} has both good/ and train/good; expected is {LAYOUTS}")
    if not beside and not parted:
        raise InputError(f"{TITLE}: {folder} has neither good/ nor train/good; expected is {LAYOUTS}")
    return sample_table(_parted_rows(folder) if parted else _beside_rows(folder))


def _beside_rows(folder: Path) -> Iterator[dict[str, Any]]:
    yield from _normal_rows(folder, folder / "good", "")
    yield from _defect_rows(folder, folder)


def _parted_rows(folder: Path) -> Iterator[dict[str, Any]]:
    refuse_others(folder, ["train", "test", "ground_truth"], TITLE)
    refuse_others(folder / "train", ["good"], TITLE)
    own_split = (folder / "test" / "good").is_dir()
    yield from _normal_rows(folder, folder / "train" / "good", "train" if own_split else "")
    if own_split:
        yield from _normal_rows(folder, folder / "test" / "good", "test")
    else:
        logger.warning("%s: without %s, part of train/good will be the test", TITLE, folder / "test" / "good")
    if (folder / "test").is_dir():
        yield from _defect_rows(folder, folder / "test")


def _normal_rows(folder: Path, images: Path, split: str) -> Iterator[dict[str, Any]]:
    for image in _class_images(images, folder):
        yield sample("folder", image.relative_to(folder).as_posix(), 0, split=split)


def _defect_rows(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    if loose := image_files(parent):
        logger.warning("%s: %d images in no class folder are skipped, e.g. %s", TITLE, len(loose), loose[0])
    for images in subfolders(parent):
        if images.name in ("good", "ground_truth"):
            continue
        masks = _masks(folder / "ground_truth" / images.name)
        for image in _class_images(images, folder, parent):
            name = image.relative_to(images).with_suffix("").as_posix()
            mask = masks.get(f"{name}_mask", masks.get(name))
            if mask:
                check_mask_size(mask, image, TITLE)
            elif masks:
                logger.warning("%s: %s has no mask in ground_truth", TITLE, image)
            mask_path = mask.relative_to(folder).as_posix() if mask else ""
            yield sample("folder", image.relative_to(folder).as_posix(), 1, images.name, mask_path=mask_path)


def _class_images(images: Path, *above: Path) -> list[Path]:
    """The images of a class, of which there must be some; a link to a folder above is no class."""
    folders = [folder.resolve() for folder in above]
    found = nested_images(images, TITLE, folders)
    if not found and images.resolve() not in folders:
        raise InputError(f"{TITLE}: no image in {images}; expected are {' '.join(sorted(IMAGE_SUFFIXES))}")
    return found


def _masks(folder: Path) -> dict[str, Path]:
    """The masks of a class, by their path in its folder without the suffix."""
    if not folder.is_dir():
        return {}
    return {mask.relative_to(folder).with_suffix("").as_posix(): mask for mask in nested_images(folder, TITLE)}


SOURCE = Source(
    name="folder",
    title=TITLE,
    licence="yours",
    obtain=OBTAIN,
    counts=None,
    split="listed",
    locate=locate,
    list_samples=list_samples,
)
