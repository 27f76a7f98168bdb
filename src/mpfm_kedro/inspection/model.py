"""The model folder: one production model with all that is needed to use it, and a card that describes it.

    card.json               what the model is, where it comes from, its thresholds, and SHA-256 of the other files
    detector.safetensors    the fitted detector
    backbone.safetensors    the weights of the backbone (backbone_2 … for further ones)
    calibration.parquet     scores of held-out normals and known anomalies
    gallery.safetensors     features of images that the model has learned from, and
    gallery.parquet         their names, classes and thumbnails

The folder is self-contained. Its files are verified against the card before they are used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mpfm_kedro.atomic import first_line, readable_folder, replacing_folder
from mpfm_kedro.detectors.mpfm.specification import stage_name
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.thresholds import Threshold, choose_threshold, describe_guarantee, item_scores
from mpfm_kedro.protocol.memory import read_artefact, write_artefact
from mpfm_kedro.provenance import key_digest

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from torch import Tensor

    from mpfm_kedro.detectors.base import Artefact

FORMAT = 8  # of the folder; others are refused
CARD, DETECTOR, CALIBRATION = "card.json", "detector.safetensors", "calibration.parquet"
GALLERY, GALLERY_FEATURES = "gallery.parquet", "gallery.safetensors"
MAX_SIZE = 4096  # pixels of a side
FIT_HINT = "kedro run --pipelines=fit makes a model"


@dataclass(frozen=True)
class HeldOutScores:
    """Scores by detectors of cross-fitting, each of images that it was fitted without.

    Args:
        table: sample_id, label, defect_class, item, score and ``PART_COLUMNS`` of all normals and of the original
            known anomalies that were ever held out; of normals, likeness to a known anomaly. Images of one item are
            one observation.
    """

    table: pd.DataFrame

    @property
    def normals(self) -> pd.DataFrame:
        """The rows of normals."""
        return self.table[self.table["label"] == 0]

    @property
    def anomalies(self) -> pd.DataFrame:
        """The rows of known anomalies."""
        return self.table[self.table["label"] == 1]

    @property
    def item_scores(self) -> np.ndarray:
        """The largest score of each normal item."""
        return item_scores(self.normals["score"], self.normals["item"].to_numpy())

    def threshold(self, rate: float, confidence: float) -> Threshold:
        """The thresholds of a false-alarm rate."""
        alike = item_scores(self.normals["likeness"], self.normals["item"].to_numpy())
        found = choose_threshold(self.item_scores, rate, confidence)
        return replace(found, alike=choose_threshold(alike, rate, confidence).defective)

    def describe(self, threshold: Threshold) -> str:
        """The guarantee and the misses of a threshold, in sentences for people."""
        known = self.anomalies
        scores = item_scores(known["score"], known["item"].to_numpy()) if len(known) else ()
        return describe_guarantee(threshold, scores, len(known))

    def describe_parts(self, parts: Mapping[str, float]) -> dict[str, str]:
        """How rare S_g, S_a, S_r and S_n of an image are among the held-out normals, as far as these can tell."""
        found, n = {}, len(self.normals)
        for name, value in parts.items():
            sign, level = (-1, "low") if name == "n" else (1, "high")  # S_n is a normality
            number = int((sign * self.normals[f"score_{name}"] >= sign * value).sum())
            if number == 0:
                found[name] = f"{level}er than any of {n:,} good images"
            elif number > n / 2:
                found[name] = f"most good images score so {level}"
            else:
                found[name] = f"about 1 in {n / number:,.0f} good images scores so {level}"
        return found


@dataclass(frozen=True)
class Gallery:
    """Images that the model has learned from, to compare new ones with."""

    table: pd.DataFrame  # sample_id, defect_class ("" for normals) and thumbnail (JPEG)
    z: np.ndarray  # their standardised pooled statistics (n, d)

    @property
    def is_known(self) -> np.ndarray:
        """Which of them are known anomalies, (n,)."""
        return self.table["defect_class"].ne("").to_numpy(copy=True)


@dataclass(frozen=True)
class Model:
    """A production model in memory; the parts are named as the files."""

    card: dict[str, Any]
    detector: dict[str, Artefact]
    backbones: list[dict[str, Tensor]]
    calibration: HeldOutScores
    gallery: Gallery


def save_model(model: Model, folder: Path, like: Path | None = None) -> None:
    """Replace a model folder; files that are equal in the folder ``like`` share its disk blocks."""
    from safetensors.numpy import save as save_arrays
    from safetensors.torch import save

    from mpfm_kedro.detectors.base import Artefact

    with replacing_folder(folder) as partial:
        tensors = {f"{name}/{key}": value for name, own in model.detector.items() for key, value in own.tensors.items()}
        details = {name: own.details for name, own in model.detector.items()}
        write_artefact(partial / DETECTOR, Artefact(tensors, details))
        for number, weights in enumerate(model.backbones):
            tensors = {name: value.contiguous() for name, value in weights.items()}
            (partial / backbone_file(number)).write_bytes(save(tensors))
        model.calibration.table.to_parquet(partial / CALIBRATION)
        (partial / GALLERY_FEATURES).write_bytes(save_arrays({"z": model.gallery.z.astype(np.float16)}))
        model.gallery.table.to_parquet(partial / GALLERY)
        files = {file.name: file_digest(file) for file in sorted(partial.iterdir())}
        if like is not None:
            for name, digest in files.items():
                _share(partial / name, like / name, digest)
        write_card(model.card | {"files": files}, partial)


def write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Write a card into a folder."""
    (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model, of the version of the format that this code knows."""
    file = readable_folder(folder) / CARD
    if not os.path.isfile(file):  # noqa: PTH113, Path.is_file raises where a name is too long
        raise InputError(f"No model in {folder}: {CARD} is missing; {FIT_HINT}")
    try:
        card = dict(json.loads(file.read_text(encoding="utf-8")))
        found = card["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"The model in {folder} is damaged: {CARD} cannot be read ({error}); {FIT_HINT}") from error
    if found != FORMAT:
        raise InputError(f"The model in {folder} has format {found}, this version reads format {FORMAT}; {FIT_HINT}")
    return card


def load_model(folder: Path) -> Model:
    """The model of a folder, after its files were verified."""
    card = read_card(folder)
    folder = readable_folder(folder)
    _verify_files(folder, card)
    try:
        return _read_model(folder, card)
    except Exception as error:  # readers of foreign files let any error through
        raise InputError(f"The model in {folder} cannot be used: {first_line(error)}; {FIT_HINT}") from error


def _verify_files(folder: Path, card: Mapping[str, Any]) -> None:
    """Refuse files that differ from those that the card names, and a card that does not name all of them."""
    files, backbones = card.get("files"), card.get("backbones")
    if not isinstance(files, dict) or not isinstance(backbones, list):
        raise InputError(f"The model in {folder} cannot be used: {CARD} names no files or no backbones; {FIT_HINT}")
    needed = {DETECTOR, CALIBRATION, GALLERY, GALLERY_FEATURES, *map(backbone_file, range(len(backbones)))}
    if missing := sorted(needed - files.keys()):
        raise InputError(f"The model in {folder} cannot be used: {CARD} does not name {', '.join(missing)}; {FIT_HINT}")
    for name, digest in files.items():
        if Path(name).name != name:
            raise InputError(f"The model in {folder} cannot be used: {CARD} names {name!r}, outside of the folder")
        if not (folder / name).is_file():
            raise InputError(f"The model in {folder} is incomplete: {name} is missing; {FIT_HINT}")
        if file_digest(folder / name) != digest:
            raise InputError(f"The model in {folder} is damaged: checksum mismatch of {name}; {FIT_HINT}")


def _read_model(folder: Path, card: dict[str, Any]) -> Model:
    from safetensors.numpy import load_file as load_arrays
    from safetensors.torch import load_file

    from mpfm_kedro.detectors.base import Artefact

    for spec in card["backbones"]:
        if not 1 <= spec["image_size"] <= MAX_SIZE:
            raise InputError(f"image_size = {spec['image_size']} is not from 1 to {MAX_SIZE}")
    gallery = Gallery(pd.read_parquet(folder / GALLERY), load_arrays(folder / GALLERY_FEATURES)["z"].astype(np.float32))
    backbones = [load_file(folder / backbone_file(number)) for number in range(len(card["backbones"]))]
    stored = read_artefact(folder / DETECTOR)
    detector: dict[str, Artefact] = {name: Artefact({}, own) for name, own in stored.details.items()}
    for key, value in stored.tensors.items():
        name, _, own = key.partition("/")
        detector[name].tensors[own] = value
    return Model(card, detector, backbones, HeldOutScores(pd.read_parquet(folder / CALIBRATION)), gallery)


def describe_origin(card: Mapping[str, Any]) -> str:
    """What a model was made from, for people."""
    name, data = " ".join(filter(None, [card["dataset"], card["category"]])), card["data"]
    return f"model of {name} ({data['normals']:,} normals, {data['anomalies']:,} known anomalies)"


def model_digest(card: Mapping[str, Any]) -> str:
    """Identifies the numbers of a model: its files, and how images are prepared for it."""
    return key_digest([card["files"], card["backbones"], card["pixel_range"]])


def backbone_file(number: int) -> str:
    """The file of the weights of one of the backbones; 0 is the first."""
    return f"{stage_name('backbone', number)}.safetensors"


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _share(file: Path, other: Path, digest: str) -> None:
    """Replace a file by a link to an equal one; a file system without links keeps the copy."""
    if other.is_file() and file_digest(other) == digest:
        link = file.with_name(f".{file.name}")
        with suppress(OSError):
            os.link(other, link)
            link.replace(file)
