"""Predictions as a page: the images that matter most, sorted by score, each with where and why.

Pictures are files beside the page. The page has at most ``MOST`` images of each decision; the table has all of them.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.files import replacing
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.inspection.thresholds import describe, item_scores, miss_rate, promise
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters
from mpfm_kedro.reports.findings import SIGNS, STYLE, TEMPLATES
from mpfm_kedro.reports.markup import page
from mpfm_kedro.reports.score_histogram import draw_histogram

MOST = {"defective": 150, "uncertain": 100, "good": 50, "error": 50}  # images of each decision in the page
SIDE = 320  # pixels of the longer side of a picture


@dataclass
class Pictures:
    """Small pictures in a folder beside the page; those that the page does not show are deleted at the end."""

    folder: Path
    thumbnails: Mapping[str, bytes]
    pixel_range: str
    max_megapixels: float
    _written: set[str] = field(default_factory=set)

    def of_file(self, path: str) -> str:
        """The address of the picture of an image; empty where it cannot be read any more."""
        from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import

        try:
            small = read_image(path, self.pixel_range, self.max_megapixels)
        except InputError:
            return ""
        small.thumbnail((SIDE, SIDE))
        name = _name("image", path)
        with replacing(self.folder / name) as partial:
            small.save(partial, format="jpeg", quality=85)
        return self._address(name)

    def of_known(self, sample_ids: Iterable[str]) -> list[tuple[str, str]]:
        """Address and name of images that the model has learned from; those that it has no picture of are skipped."""
        found = []
        for sample_id in sample_ids:
            if sample_id in self.thumbnails:
                name = _name("known", sample_id)
                if name not in self._written:
                    with replacing(self.folder / name) as partial:
                        partial.write_bytes(self.thumbnails[sample_id])
                found.append((self._address(name), sample_id))
        return found

    def delete_others(self) -> None:
        """Delete pictures of earlier pages."""
        for file in self.folder.glob("*.jpg"):
            if file.name not in self._written:
                file.unlink()

    def _address(self, name: str) -> str:
        self._written.add(name)
        return f"{self.folder.name}/{name}"


def write_page(
    predictions: pd.DataFrame,
    model: Model,
    log_folder: Path,
    overlays: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
    gallery: Path,
) -> str:
    """The page. Pictures are written to the folder ``gallery``, which is beside it, as ``overlays`` is."""
    from mpfm_kedro.inspection.prediction_log import PredictionLog
    from mpfm_kedro.inspection.predictions import overlay_path  # with torch, which is slow to import

    shown = choose(predictions)
    said = PredictionLog.of(log_folder, model.card).read(set(shown["path"]))
    known = model.gallery.table
    thumbnails = dict(zip(known["sample_id"], known["thumbnail"], strict=True))
    pictures = Pictures(gallery, thumbnails, model.card["pixel_range"], ingestion.max_megapixels)
    folder = _common_folder(shown["path"])
    images = []
    for row in shown.to_dict("records"):
        overlay = overlay_path(overlays, model.card, row["path"])
        address = overlay.relative_to(overlays.parent).as_posix() if overlay.is_file() else ""
        images.append(_describe_image(row, said.get(row["path"], {}), pictures, address, folder))
    pictures.delete_others()
    body = TEMPLATES.get_template("predictions.html").render(
        _summary(predictions, model, parameters),
        images=images,
        folder=folder,
        total=len(predictions),
        shown=Counter(shown["decision"]),
        limited=_limited(predictions, shown),
    )
    return page("Predictions", [body], STYLE)


def choose(predictions: pd.DataFrame) -> pd.DataFrame:
    """The rows that the page shows: of each decision those with the highest scores, in the order of the table."""
    chosen = predictions.groupby("decision", sort=False).cumcount() < predictions["decision"].map(MOST)
    return predictions[chosen]


def _summary(predictions: pd.DataFrame, model: Model, parameters: InspectionParameters) -> dict[str, Any]:
    """What is promised, and how the scores lie around the thresholds."""
    normals = item_scores(model.calibration.normal_scores, model.calibration.normal_items)
    promised = promise(normals, parameters.false_alarm_rate, parameters.confidence)
    known = model.calibration.anomaly_scores
    missed = miss_rate(known, promised.defective, parameters.confidence) if len(known) else None
    scores = predictions.loc[predictions["decision"] != "error", "score"].astype(float)
    histogram = draw_histogram(normals, scores, promised)
    return {"promise": describe(promised, missed), "histogram": histogram, "thresholds": promised}


def _limited(predictions: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Of which decisions the page does not show all images."""
    every, here = Counter(predictions["decision"]), Counter(shown["decision"])
    words = {name: "unreadable" if name == "error" else name for name in SIGNS}
    counts = [f"{here[name]:,} of {every[name]:,} {words[name]}" for name in SIGNS if here[name] < every[name]]
    return f" This page shows {', '.join(counts)}, those with the highest scores." if counts else ""


def _describe_image(
    row: dict[Any, Any], said: dict[str, Any], pictures: Pictures, overlay: str, folder: str
) -> dict[str, Any]:
    """One image, with the addresses of its pictures."""
    name = os.path.relpath(row["path"], folder) if folder else row["path"]
    found = row | {"name": name, "uri": Path(row["path"]).as_uri(), "overlay": overlay, "shares": said.get("shares")}
    if row["decision"] != "error":
        found["picture"] = pictures.of_file(row["path"])
    if said.get("shares"):
        found |= {kind: pictures.of_known(said[kind]) for kind in ("normals", "anomalies")}
    return found


def _common_folder(paths: Iterable[str]) -> str:
    parents = [str(Path(path).parent) for path in paths]
    found = os.path.commonpath(parents) if parents else ""
    return "" if found == os.sep else found


def _name(kind: str, text: str) -> str:
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.jpg"
