"""The model folder: one production model with all that is needed to use it, and a card that says what it is.

    card.json               what the model is, where it comes from and what is promised; digests of the other files
    detector.safetensors    the fitted detector
    backbone.safetensors    the weights of the backbone (backbone_2 … for further ones)
    calibration.safetensors scores of normals and of known anomalies by detectors that were fitted without them
    gallery.safetensors     features of images that the model has learned from, and
    gallery.parquet         their names, classes and thumbnails

The folder needs nothing outside of it. Its files are checked against the card before they are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from safetensors import safe_open

from mpfm_kedro.detectors.pieces import piece_name
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import BLANK, first_line, is_intact, recover_folder, replacing_folder, seal

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from torch import Tensor

    from mpfm_kedro.detectors.base import Artefact

FORMAT = 5  # of the folder; others are refused
CARD, DETECTOR, CALIBRATION = "card.json", "detector.safetensors", "calibration.safetensors"
GALLERY, GALLERY_FEATURES = "gallery.parquet", "gallery.safetensors"
MAX_SIZE = 4096  # pixels of a side
HOW = "kedro run --pipelines=fit makes a model"


@dataclass(frozen=True)
class Calibration:
    """What detectors of cross-fitting say of the images that they were fitted without.

    Args:
        normal_scores: of unseen normals (n,).
        normal_items: the item of each (n,); pieces of one item are one observation.
        anomaly_scores: of known anomalies (m,), without views; those that were never left out are missing.
    """

    normal_scores: np.ndarray
    normal_items: np.ndarray
    anomaly_scores: np.ndarray


@dataclass(frozen=True)
class Gallery:
    """Images that the model has learned from, to show what a new one is like.

    Args:
        table: sample_id, defect_class ("" for normals) and thumbnail (JPEG) of each.
        z: standardised pooled statistics of each (n, d).
    """

    table: pd.DataFrame
    z: np.ndarray


@dataclass(frozen=True)
class Model:
    """A production model in memory; the parts are named as the files."""

    card: dict[str, Any]
    detector: dict[str, Artefact]
    backbones: list[dict[str, Tensor]]
    calibration: Calibration
    gallery: Gallery


def save_model(model: Model, folder: Path, like: Path | None = None) -> None:
    """Write a model folder in one step; files that are the same in the folder ``like`` share its disk blocks."""
    import torch
    from safetensors.torch import save_file

    with replacing_folder(folder) as partial:
        _save_artefacts(model.detector, partial / DETECTOR)
        for number, weights in enumerate(model.backbones):
            save_file({name: value.contiguous() for name, value in weights.items()}, partial / backbone_file(number))
        arrays = {
            name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in vars(model.calibration).items()
        }
        save_file(arrays, partial / CALIBRATION)
        save_file({"z": torch.from_numpy(model.gallery.z).half()}, partial / GALLERY_FEATURES)
        model.gallery.table.to_parquet(partial / GALLERY)
        files = {file.name: _digest(file) for file in sorted(partial.iterdir())}
        if like is not None and like.is_dir():
            _share(partial, like, files)
        card = model.card | {"files": files, "checksum": BLANK}
        (partial / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), encoding="utf-8")
        seal(partial / CARD)


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model, of the version of the format that this code knows."""
    recover_folder(folder)
    file = folder / CARD
    if not file.is_file():
        raise InputError(f"No model in {folder}: {CARD} is missing; {HOW}")
    try:
        if not is_intact(file):
            raise ValueError("it has not the checksum that it names")
        card = json.loads(file.read_text(encoding="utf-8"))
        found, _ = card["format"], card.pop("checksum", None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"The model in {folder} is damaged: {CARD} cannot be read ({error}); {HOW}") from error
    if found != FORMAT:
        raise InputError(f"The model in {folder} has format {found}, and this version reads format {FORMAT}; {HOW}")
    return card


def check_files(folder: Path, card: Mapping[str, Any]) -> None:
    """Refuse a folder whose files are not those that the card names, and a card that does not name all of them."""
    files, backbones = card.get("files"), card.get("backbones")
    if not isinstance(files, dict) or not isinstance(backbones, list):
        raise InputError(f"The model in {folder} cannot be used: {CARD} names no files or no backbones; {HOW}")
    needed = {DETECTOR, CALIBRATION, GALLERY, GALLERY_FEATURES, *map(backbone_file, range(len(backbones)))}
    if missing := sorted(needed - files.keys()):
        raise InputError(f"The model in {folder} cannot be used: {CARD} does not name {', '.join(missing)}; {HOW}")
    for name, digest in files.items():
        if Path(name).name != name:
            raise InputError(f"The model in {folder} cannot be used: {CARD} names {name!r}, outside of the folder")
        if not (folder / name).is_file():
            raise InputError(f"The model in {folder} is incomplete: {name} is missing; {HOW}")
        if _digest(folder / name) != digest:
            raise InputError(f"The model in {folder} is damaged: {name} is not the file that {CARD} names; {HOW}")


def load_model(folder: Path) -> Model:
    """The model of a folder, after its files were checked."""
    card = read_card(folder)
    check_files(folder, card)
    try:
        return _read_model(folder, card)
    except Exception as error:  # readers of foreign files let any error through
        raise InputError(f"The model in {folder} cannot be used: {first_line(error)}; {HOW}") from error


def _read_model(folder: Path, card: dict[str, Any]) -> Model:
    from safetensors.torch import load_file

    for spec in card["backbones"]:
        if not 1 <= spec["image_size"] <= MAX_SIZE:
            raise InputError(f"image_size = {spec['image_size']} is not from 1 to {MAX_SIZE}")
    arrays = {name: value.numpy() for name, value in load_file(folder / CALIBRATION).items()}
    gallery = Gallery(pd.read_parquet(folder / GALLERY), load_file(folder / GALLERY_FEATURES)["z"].float().numpy())
    backbones = [load_file(folder / backbone_file(number)) for number in range(len(card["backbones"]))]
    return Model(card, _load_artefacts(folder / DETECTOR), backbones, Calibration(**arrays), gallery)


def model_digest(card: Mapping[str, Any]) -> str:
    """Names the numbers of a model: its files, and how images are prepared for it."""
    content = json.dumps([card["files"], card["backbones"], card["pixel_range"]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def backbone_file(number: int) -> str:
    """The file of the weights of one of the backbones; 0 is the first."""
    return f"{piece_name('backbone', number)}.safetensors"


def _save_artefacts(artefacts: Mapping[str, Artefact], path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {f"{name}/{key}": value for name, own in artefacts.items() for key, value in own.tensors.items()}
    details = json.dumps({name: own.details for name, own in artefacts.items()})
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata={"details": details})


def _load_artefacts(path: Path) -> dict[str, Artefact]:
    from safetensors.torch import load_file

    from mpfm_kedro.detectors.base import Artefact

    with safe_open(path, framework="np") as file:
        details = json.loads(file.metadata()["details"])
    # copies, so that numbers do not depend on where the header ends
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    found: dict[str, Artefact] = {}
    for name, own in details.items():
        start = f"{name}/"
        kept = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        found[name] = Artefact(kept, own)
    return found


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _share(partial: Path, like: Path, files: Mapping[str, str]) -> None:
    """Replace files that are the same elsewhere by links."""
    for name, digest in files.items():
        if (like / name).is_file() and _digest(like / name) == digest:
            (partial / name).unlink()
            _link_or_copy(str(like / name), str(partial / name))


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
    return target
