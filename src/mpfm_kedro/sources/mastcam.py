"""Mastcam: multispectral images of Mars, ``.npy`` arrays of 64×64×6; the first three channels are used.

``train_typical`` and ``test_typical`` are the normals with their own split, each folder of ``test_novel`` is
a class of anomalies. ``test_novel/all`` repeats these classes and is skipped, ``validation_typical`` is
not used. A frame that carries two labels is in two classes: its name is its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import find_folder, required_folder, required_images, subfolders
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

TITLE = "Mastcam"
OBTAIN = "Kerner et al. (2020), https://zenodo.org/records/3732485"
REPEATED = "all"
N_CLASSES = 11
PAPER_CLASSES = {"bedrock", "broken-rock", "drill-hole", "drt", "dump-pile", "float", "meteorite", "scuff", "veins"}


def locate(root: Path) -> Path:
    """The folder of the typical and the novel images."""
    return find_folder(root / "mastcam", TITLE, ["train_typical", "test_typical", "test_novel"], OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """Typical images with their split, and the novel ones by class."""
    return sample_table(_rows(folder))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for split in ("train", "test"):
        for path, frame in _arrays(folder, folder / f"{split}_typical"):
            yield sample("mastcam", path, 0, split=split, group=frame)
    for novel in _novel_folders(required_folder(folder / "test_novel", TITLE)):
        for path, frame in _arrays(folder, novel):
            yield sample("mastcam", path, 1, novel.name, group=frame)


def _novel_folders(folder: Path) -> list[Path]:
    """The class folders; a twelfth would be a second copy of others' frames, as ``all`` is."""
    found = [path for path in subfolders(folder) if path.name != REPEATED]
    if not found:
        raise InputError(f"{TITLE}: {folder} should hold one folder for each class, such as {min(PAPER_CLASSES)}")
    if len(found) > N_CLASSES:
        others = ", ".join(path.name for path in found if path.name not in PAPER_CLASSES)
        raise InputError(f"{TITLE}: {folder} has {len(found)} classes, published are {N_CLASSES}; look at {others}")
    return found


def _arrays(folder: Path, images: Path) -> Iterator[tuple[str, str]]:
    for file in required_images(images, TITLE):
        if file.suffix.lower() != ".npy":
            raise InputError(f"{TITLE}: {file} is no .npy array; the published images are")
        yield file.relative_to(folder).as_posix(), file.stem


SOURCE = Source(
    name="mastcam",
    title=TITLE,
    licence="see the publisher",
    obtain=OBTAIN,
    counts={"": Counts(train=9302, test=426, anomalies=451)},
    split="own",
    locate=locate,
    list_samples=list_samples,
)
