"""A production model from fitted pieces: what it says of unseen normals, a gallery, a card."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact, TrainingData
from mpfm_kedro.detectors.mpfm.detector import MPFMDetector, keep_final, load, load_fold_models
from mpfm_kedro.experiments.run_data import select, training_data
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.heat_maps import find_limits
from mpfm_kedro.inspection.model import FORMAT, Calibration, Gallery, Model
from mpfm_kedro.inspection.thresholds import describe, miss_rate, promise
from mpfm_kedro.progress import progress
from mpfm_kedro.provenance import code_revision, library_versions
from mpfm_kedro.sources import SOURCES
from mpfm_kedro.sources.repeats import joined_groups

MOST_MAPS = 1000  # of unseen normals, that the scale of heat maps rests on
MOST_IN_GALLERY = 1000  # normals, and as many anomalies
THUMBNAIL = 96
Value = TypeVar("Value")
LICENCES = {
    "resnet18": "BSD-3-Clause (torchvision), trained on ImageNet",
    "dinov2_vits14": "Apache-2.0 (Meta AI)",
}


@dataclass(frozen=True)
class Fitted:
    """What a production model is made from.

    Args:
        run: the production run: all normals and all known anomalies.
        pieces: of the fitted detector.
        features: of all samples.
        samples: the sample table.
        images: their loader.
        weights: of each backbone.
    """

    run: dict[str, Any]
    pieces: dict[str, Artefact]
    features: Features
    samples: pd.DataFrame
    images: ImageLoader
    weights: Sequence[Mapping[str, Tensor]]


def make_model(
    fitted: Fitted,
    false_alarm_rate: float,
    confidence: float,
    evaluation: dict[str, Any],
    learned: list[dict[str, Any]],
    device: torch.device,
) -> Model:
    """The production model with its card; what is promised rests on detectors of cross-fitting."""
    data = training_data(fitted.run, fitted.features)
    calibration, limits = calibrate(fitted, data, device)
    detector = load(fitted.pieces, device)
    card = describe_model(fitted, evaluation, learned) | {"heat_map": dict(zip(("low", "high"), limits, strict=True))}
    card |= describe_promise(calibration, false_alarm_rate, confidence)
    weights = [dict(each) for each in fitted.weights]
    return Model(card, keep_final(fitted.pieces), weights, calibration, make_gallery(fitted, detector))


def calibrate(fitted: Fitted, data: TrainingData, device: torch.device) -> tuple[Calibration, tuple[float, float]]:
    """Scores of unseen normals and anomalies, and the limits of heat maps: percentiles of the unseen normals'."""
    left_out = load_fold_models(fitted.pieces, data.anomalies.source, fitted.run["seed"], device)
    items = dict(zip(fitted.samples["sample_id"], joined_groups(fitted.samples), strict=True))
    of_normals = np.array([items[sample] for sample in fitted.run["train_normals"]])
    scores, owners, anomalies, maps = [], [], [np.empty(0)], []
    share = min(1.0, MOST_MAPS / max(1, sum(len(each.normals) for each in left_out)))
    with progress("Scoring unseen images", len(left_out), "rounds") as bar:
        for each in left_out:
            found = each.detector.inspect(data.normals.take(each.normals))
            scores.append(found.score.double().numpy())
            owners.append(of_normals[each.normals])
            some = found.positions[: max(1, round(share * len(found.positions)))].numpy()
            maps.append(smooth_maps(some).ravel())
            originals = each.anomalies[each.anomalies < data.n_known]
            anomalies.append(each.detector.score_samples(data.anomalies.take(originals)).score)
            bar.advance()
    limits = find_limits(np.concatenate(maps))
    return Calibration(np.concatenate(scores), np.concatenate(owners), np.concatenate(anomalies)), limits


def describe_promise(calibration: Calibration, false_alarm_rate: float, confidence: float) -> dict[str, Any]:
    """What the card says of thresholds: for one rate here, for any other from the calibration."""
    promised = promise(calibration.normal_scores, false_alarm_rate, confidence, calibration.normal_items)
    known = calibration.anomaly_scores
    missed = miss_rate(known, promised.defective, confidence) if len(known) else None
    return {
        "promise": asdict(promised),
        "misses": asdict(missed) if missed else None,
        "promise_in_words": describe(promised, missed),
    }


def describe_model(fitted: Fitted, evaluation: dict[str, Any], learned: list[dict[str, Any]]) -> dict[str, Any]:
    """The card: what the model is, what it was made from and how images are prepared for it."""
    run, samples = fitted.run, fitted.samples
    known = samples[samples["sample_id"].isin(run["known_anomalies"])]
    ranges = sorted(set(samples["pixel_range"]) - {""})
    return {
        "format": FORMAT,
        "dataset": run["dataset"],
        "category": run["category"],
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": code_revision(),
        "libraries": library_versions(),
        "data": {
            "digest": fitted.features.digest,
            "normals": len(run["train_normals"]),
            "anomalies": len(run["known_anomalies"]),
            "classes": {str(name): int(number) for name, number in known["defect_class"].value_counts().items()},
            "licence": SOURCES[run["dataset"]].licence if run["dataset"] in SOURCES else "yours",
        },
        "parameters": {name: piece.details["parameters"] for name, piece in fitted.pieces.items()},
        "seed": run["seed"],
        "pixel_range": ranges[0] if ranges else "",
        "backbones": [
            asdict(spec) | {"licence": LICENCES.get(spec.backbone, "see where the weights come from")}
            for spec in fitted.features.specs
        ],
        "evaluation": evaluation,
        "learned": learned,
    }


def make_gallery(fitted: Fitted, detector: MPFMDetector) -> Gallery:
    """Some of the normals and some of the known anomalies, evenly over all."""
    halves = fitted.run["train_normals"], fitted.run["known_anomalies"]
    chosen = [name for half in halves for name in evenly(half, MOST_IN_GALLERY)]
    table = fitted.samples.set_index("sample_id").loc[chosen]
    thumbnails = [
        _jpeg(fitted.images, *values) for values in table[["path", "crop", "content_hash", "pixel_range"]].to_numpy()
    ]
    shown = pd.DataFrame({"sample_id": chosen, "defect_class": table["defect_class"].tolist(), "thumbnail": thumbnails})
    rows = select(fitted.features, np.array(chosen), [ORIGINAL]).of_backbone(0)
    return Gallery(shown, detector.first.closed_form.standardiser.z_of(rows).cpu().numpy())


def evenly(values: Sequence[Value], most: int) -> list[Value]:
    """At most so many of some values, from all over them."""
    places = np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int)
    return [values[place] for place in places]


def _jpeg(images: ImageLoader, path: str, crop: str, content_hash: str, pixel_range: str) -> bytes:
    small = images.thumbnail(path, crop, content_hash, pixel_range)
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    small.save(content, format="jpeg", quality=85)
    return content.getvalue()
