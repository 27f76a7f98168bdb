"""BrainMRI: magnetic resonance images, ``no/`` without and ``yes/`` with a tumor.

Suffixes are mixed (.jpg, .JPG, .jpeg, .png): matching one of them would lose half of the anomalies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import find_folder, required_images, subfolders
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

logger = logging.getLogger(__name__)
TITLE = "BrainMRI"
OBTAIN = "N. Chakrabarty on Kaggle (Brain MRI Images for Brain Tumor Detection)"
CLASSES = {"no": "", "yes": "tumor"}


def locate(root: Path) -> Path:
    """The folder of ``no`` and ``yes``."""
    return find_folder(root / "brainmri", TITLE, list(CLASSES), OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """Both classes."""
    for other in subfolders(folder):
        if all((other / name).is_dir() for name in CLASSES):
            logger.warning("%s: %s repeats the images beside it and is skipped", TITLE, other)
        elif other.name not in CLASSES:
            raise InputError(f"{TITLE}: unknown folder {other}; expected are no and yes")
    return sample_table(_rows(folder))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for name, defect_class in CLASSES.items():
        for image in required_images(folder / name, TITLE):
            yield sample("brainmri", image.relative_to(folder).as_posix(), int(name == "yes"), defect_class)


SOURCE = Source(
    name="brainmri",
    title=TITLE,
    licence="see the publisher",
    obtain=OBTAIN,
    counts={"": Counts(train=73, test=25, anomalies={"tumor": 155})},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
