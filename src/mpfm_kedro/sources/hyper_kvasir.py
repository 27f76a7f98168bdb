"""Hyper-Kvasir: endoscopy of the upper gastro-intestinal tract.

``labeled-images/upper-gi-tract/anatomical-landmarks/<class>`` are the normals, pooled;
``pathological-findings/<class>`` the classes of anomalies. The rest of the dataset is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.sources.layout import class_folders, find_folder, required_folder, required_images
from mpfm_kedro.sources.samples import sample, sample_table
from mpfm_kedro.sources.source import Counts, Source

TITLE = "Hyper-Kvasir"
OBTAIN = "Simula Research Laboratory (Hyper-Kvasir, the labelled images)"
LANDMARKS = ["pylorus", "retroflex-stomach", "z-line"]
FINDINGS = {"barretts": 41, "barretts-short-segment": 53, "esophagitis-a": 403, "esophagitis-b-d": 260}


def locate(root: Path) -> Path:
    """The folder with the labelled images."""
    return find_folder(root / "hyper_kvasir", TITLE, ["labeled-images"], OBTAIN)


def list_samples(folder: Path) -> pd.DataFrame:
    """Landmarks as normals, findings as anomalies."""
    tract = required_folder(required_folder(folder / "labeled-images", TITLE) / "upper-gi-tract", TITLE)
    return sample_table(_rows(folder, tract))


def _rows(folder: Path, tract: Path) -> Iterator[dict[str, Any]]:
    landmarks = required_folder(tract / "anatomical-landmarks", TITLE)
    for images in class_folders(landmarks, LANDMARKS, TITLE).values():
        for image in required_images(images, TITLE):
            yield sample("hyper_kvasir", image.relative_to(folder).as_posix(), 0)
    findings = required_folder(tract / "pathological-findings", TITLE)
    for name, images in class_folders(findings, FINDINGS, TITLE).items():
        for image in required_images(images, TITLE):
            yield sample("hyper_kvasir", image.relative_to(folder).as_posix(), 1, name)


SOURCE = Source(
    name="hyper_kvasir",
    title=TITLE,
    licence="see the publisher",
    obtain=OBTAIN,
    counts={"": Counts(train=2021, test=674, anomalies=FINDINGS)},
    split="three_to_one",
    locate=locate,
    list_samples=list_samples,
)
