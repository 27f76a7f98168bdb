"""Optical (DAGM 2007): synthetic textures in ten classes, pooled into one normal and one anomalous class.

``Class<i>/Class<i>/{Train,Test}/Label/Labels.txt`` names the images: one line ahead, then columns between
tabs, of which [1] is the flag of a defect, [2] the image and [4] the label image. File names repeat from
class to class: the path, which is the id, keeps the class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import class_folders, find_folder, image_files, required_folder
from mpfm_kedro.sources.masks import check_mask_size
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

logger = logging.getLogger(__name__)
TITLE = "Optical (DAGM 2007)"
OBTAIN = "the Heidelberg Collaboratory for Image Processing (DAGM 2007 competition)"
CLASSES = [f"Class{number}" for number in range(1, 11)]


class Line(NamedTuple):
    """One image as Labels.txt gives it; ``mask`` is empty for a normal one."""

    image: str
    mask: str


def locate(root: Path) -> Path:
    """The folder of the ten classes."""
    return find_folder(root / "optical", TITLE, CLASSES, OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """The images of all Labels.txt files, training and test parts together."""
    return sample_table(
        row
        for path in class_folders(folder, CLASSES, TITLE).values()
        for part in ("Train", "Test")
        for row in _part_rows(folder, required_folder(path / part, TITLE))
    )


def _part_rows(folder: Path, part: Path) -> Iterator[dict[str, Any]]:
    labels = required_folder(part / "Label", TITLE)
    images, masks = _by_name(part), _by_name(labels)
    lines = read_labels(labels / "Labels.txt")
    if others := sorted(set(images) - {line.image.lower() for line in lines}):
        logger.warning("%s: %d images in %s are not in Labels.txt, e.g. %s", TITLE, len(others), part, others[0])
    for line in lines:
        image = _named(line.image, images, part)
        mask_path = ""
        if line.mask:
            mask = _named(line.mask, masks, labels)
            check_mask_size(mask, image, TITLE)
            mask_path = mask.relative_to(folder).as_posix()
        path, label = image.relative_to(folder).as_posix(), int(bool(line.mask))
        yield sample("optical", path, label, "defect" if label else "", mask_path=mask_path)


def read_labels(file: Path) -> list[Line]:
    """The lines of a Labels.txt after the first one, which is no image."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{TITLE}: cannot read {file}: {error}") from error
    if not lines or "\t" in lines[0]:
        raise InputError(f"{TITLE}: {file} should begin with a line of one number, and then list the images")
    return [_parse(line, f"{file}, line {number}") for number, line in enumerate(lines[1:], 2) if line.strip()]


def _parse(line: str, where: str) -> Line:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) >= 3 and fields[1] == "0":
        return Line(fields[2], "")
    if len(fields) >= 5 and fields[1] == "1" and fields[4]:
        return Line(fields[2], fields[4])
    raise InputError(f"{TITLE}: {where}: expected number, flag 0 or 1, image, number, label image; found {line!r}")


def _by_name(folder: Path) -> dict[str, Path]:
    return {file.name.lower(): file for file in image_files(folder)}


def _named(name: str, files: dict[str, Path], folder: Path) -> Path:
    """The file that Labels.txt names; copies differ in the case of .PNG."""
    if name.lower() not in files:
        raise InputError(f"{TITLE}: {folder / name} is missing, and Labels.txt names it")
    return files[name.lower()]


SOURCE = Source(
    name="optical",
    title=TITLE,
    licence="see the publisher",
    obtain=OBTAIN,
    counts={"": Counts(train=10500, test=3500, anomalies={"defect": 2100})},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
