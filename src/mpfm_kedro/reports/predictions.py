"""Predictions as a page: the images that matter most, sorted by score, each with where and why.

Pictures are files beside the page. The page has at most ``MOST`` images of each decision; the table has all of them.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from mpfm_kedro.atomic import replacing
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.batches import compare_batch
from mpfm_kedro.inspection.heat_maps import to_jpeg
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.inspection.thresholds import Threshold
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters
from mpfm_kedro.reports.pages import SCORES, embed_figure, render

MOST = {"defective": 150, "uncertain": 100, "good": 50, "error": 50}  # images of each decision in the page
BINS = 60
NORMAL, PREDICTED = "#9ec9e2", "#b34700"
SIDE = 320  # pixels of the longer side of a picture


@dataclass
class Pictures:
    """Small pictures in a folder beside the page."""

    folder: Path
    thumbnails: Mapping[str, bytes]
    pixel_range: str
    max_megapixels: float
    _written: set[str] = field(default_factory=set)

    def of_file(self, path: str) -> str:
        """The address of the picture of an image; empty where it cannot be read any more."""
        from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import

        try:
            image = read_image(path, self.pixel_range, self.max_megapixels)
        except InputError:
            return ""
        return self._write("image", path, to_jpeg(image, SIDE))

    def of_known(self, sample_ids: Iterable[str]) -> list[tuple[str, str]]:
        """Address and name of images that the model has learned from; those without a picture are skipped."""
        known = [sample_id for sample_id in sample_ids if sample_id in self.thumbnails]
        return [(self._write("known", sample_id, self.thumbnails[sample_id]), sample_id) for sample_id in known]

    def _write(self, kind: str, source: str, content: bytes) -> str:
        name = f"{kind}-{hashlib.sha256(source.encode()).hexdigest()[:20]}.jpg"
        if name not in self._written:
            with replacing(self.folder / name) as partial:
                partial.write_bytes(content)
            self._written.add(name)
        return f"{self.folder.name}/{name}"


def write_page(
    predictions: pd.DataFrame,
    model: Model,
    log_folder: Path,
    folder: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
) -> str:
    """The page in a folder, where pictures are written to, and heat maps are."""
    # with torch, which is slow to import
    from mpfm_kedro.inspection.predictions import OVERLAYS, PredictionLog, overlay_path

    shown = choose(predictions)
    logged = PredictionLog.of(log_folder, model.card).read(set(shown["path"]))
    thumbnails: dict[str, bytes] = dict(model.gallery.table[["sample_id", "thumbnail"]].itertuples(index=False))
    pictures = Pictures(folder / "pictures", thumbnails, model.card["pixel_range"], ingestion.max_megapixels)
    common = _common_folder(shown["path"])
    images = []
    for image in shown.to_dict("records"):
        path = image["path"]
        known, overlay = logged.get(path, {}), overlay_path(folder / OVERLAYS, model.card, path)
        image["name"], image["uri"] = os.path.relpath(path, common) if common else path, Path(path).as_uri()
        image["overlay"] = overlay.relative_to(folder).as_posix() if overlay.is_file() else ""
        if image["decision"] != "error":
            image["picture"] = pictures.of_file(path)
            image["rarity"] = model.calibration.describe_parts({part: image[f"score_{part}"] for part in SCORES})
        image["shares"] = known.get("shares")
        if image["shares"]:
            image |= {kind: pictures.of_known(known[kind]) for kind in ("normals", "anomalies")}
        images.append(image)
    threshold = model.calibration.threshold(parameters.false_alarm_rate, parameters.confidence)
    scores = predictions.loc[predictions["decision"] != "error", "score"].astype(float)
    return render(
        "predictions.html",
        title="Predictions",
        guarantee=model.calibration.describe(threshold),
        histogram=draw_histogram(model.calibration.item_scores, scores, threshold),
        thresholds=threshold,
        images=images,
        folder=common,
        shift=compare_batch(predictions, model.calibration),
        total=Counter(predictions["decision"]),
        shown=Counter(shown["decision"]),
    )


def draw_histogram(normal_scores: ArrayLike, scores: ArrayLike, threshold: Threshold) -> Markup:
    """Shares of the scores of held-out normals (filled) and of the predictions (line) as an image."""
    normals, predicted = np.asarray(normal_scores, dtype=float), np.asarray(scores, dtype=float)
    thresholds = {"good up to": threshold.good, "defective above": threshold.defective}
    shown = {name: value for name, value in thresholds.items() if value is not None}
    edges = np.histogram_bin_edges([*normals, *predicted, *shown.values()], BINS)
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.set_yscale("function", functions=(np.sqrt, np.square))  # a root, so that few high scores are seen
    filled, line = (np.histogram(values, edges)[0] / max(1, len(values)) for values in (normals, predicted))
    axis.stairs(filled, edges, color=NORMAL, fill=True, label=f"{len(normals):,} held-out normals")
    axis.stairs(line, edges, color=PREDICTED, lw=1.6, label=f"{len(predicted):,} predictions")
    for dashes, (name, value) in zip(("--", ":"), shown.items(), strict=False):
        axis.axvline(value, color="#1a1a1a", ls=dashes, lw=1.2, label=f"{name} {value:.2f}")
    axis.set(xlabel="score (height: square root of the share)", yticks=[], ylim=(0, None))
    axis.spines[["left", "top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=4, frameon=False)
    words = ", ".join(f"{name} {value:.2f}" for name, value in shown.items())
    title = f"Histogram of the scores of held-out normals and of the predictions; {words}"
    return Markup("<img class='histogram' alt='{}' src='{}'>").format(title, embed_figure(figure))


def choose(predictions: pd.DataFrame) -> pd.DataFrame:
    """The rows that the page shows: of each decision those with the highest scores, in the order of the table."""
    chosen = predictions.groupby("decision", sort=False).cumcount() < predictions["decision"].map(MOST)
    return predictions[chosen]


def _common_folder(paths: Iterable[str]) -> str:
    parents = [str(Path(path).parent) for path in paths]
    common = os.path.commonpath(parents) if parents else ""
    return "" if common == os.sep else common
