"""A production model from fitted pieces: its scores of held-out images, a gallery, a card."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.detector import (
    MPFMDetector,
    MPFMOutput,
    keep_final,
    load,
    load_calibrations,
    load_fold_models,
)
from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.heat_maps import find_limits, to_jpeg
from mpfm_kedro.inspection.likeness import likeness
from mpfm_kedro.inspection.model import FORMAT, Gallery, HeldOutScores, Model
from mpfm_kedro.inspection.operating_points import advise, count_misses, name_unusual_normals
from mpfm_kedro.progress import progress
from mpfm_kedro.protocol.data import select, training_data
from mpfm_kedro.provenance import code_revision, library_versions
from mpfm_kedro.sources import SOURCES
from mpfm_kedro.sources.samples import sample_size

MAX_MAPS = 1000  # of held-out normals, that the scale of heat maps rests on
MAX_IN_GALLERY = 1000  # normals, and as many anomalies
THUMBNAIL = 96
SCORE_COLUMNS = ["score", *PART_COLUMNS]
Value = TypeVar("Value")
LICENCES = {
    "resnet18": "BSD-3-Clause (torchvision), trained on ImageNet",
    "dinov2_vits14": "Apache-2.0 (Meta AI)",
}


@dataclass(frozen=True)
class ProductionFit:
    """What a production model is made from."""

    run: dict[str, Any]  # all normals and all known anomalies
    fits: dict[str, Artefact]  # of its stages
    features: Features
    samples: pd.DataFrame
    images: ImageLoader
    weights: Sequence[Mapping[str, Tensor]]  # of each backbone

    def padded_sizes(self, sample_ids: Sequence[str] | np.ndarray) -> list[tuple[int, int]] | None:
        """Width and height of samples that were padded to squares; None where images are squeezed."""
        if not self.features.store.spec.keep_proportions:
            return None
        rows = self.samples.set_index("sample_id").loc[list(sample_ids), ["crop", "width", "height"]]
        return [sample_size(*row) for row in rows.to_numpy()]


def make_model(
    fit: ProductionFit,
    false_alarm_rate: float,
    confidence: float,
    evaluation: dict[str, Any],
    learned: list[dict[str, Any]],
    device: torch.device,
) -> Model:
    """The production model with its card; its guarantee rests on detectors of cross-fitting."""
    calibration, (low, high) = score_held_out(fit, device)
    detector = load(fit.fits, device)
    gallery = make_gallery(fit, detector)
    calibration = add_likeness(calibration, gallery, fit, detector)
    card = describe_model(fit, evaluation, learned) | {"heat_map": {"low": low, "high": high}}
    card["score_weights"] = describe_weights(fit.fits["calibration"])
    card |= describe_threshold(calibration, false_alarm_rate, confidence)
    weights = [dict(each) for each in fit.weights]
    return Model(card, keep_final(fit.fits), weights, calibration, gallery)


def score_held_out(fit: ProductionFit, device: torch.device) -> tuple[HeldOutScores, tuple[float, float]]:
    """Scores of held-out normals and anomalies, and the limits of heat maps: percentiles of the held-out normals'."""
    data = training_data(fit.run, fit.features)
    fold_models = load_fold_models(fit.fits, data, fit.run["seed"], device)
    samples = fit.samples.set_index("sample_id")[["label", "defect_class", "item"]]
    normals, known = (np.array(fit.run[name]) for name in ("train_normals", "known_anomalies"))
    tables, maps = [], []
    share = min(1.0, MAX_MAPS / max(1, sum(len(fold.normals) for fold in fold_models)))
    with progress("Scoring held-out images", len(fold_models), "rounds") as bar:
        for fold in fold_models:
            result = fold.detector.inspect(data.normals.take(fold.normals))
            some = result.positions[: max(1, round(share * len(result.positions)))].numpy()
            maps.append(smooth_maps(some, sizes=fit.padded_sizes(normals[fold.normals][: len(some)])).ravel())
            tables.append(_scored(normals[fold.normals], result))
            if len(originals := fold.anomalies[fold.anomalies < data.n_known]):
                tables.append(_scored(known[originals], fold.detector.inspect(data.anomalies.take(originals))))
            bar.update()
    held_out = pd.concat(tables, ignore_index=True)
    described = samples.loc[held_out["sample_id"]].reset_index()
    return HeldOutScores(pd.concat([described, held_out[SCORE_COLUMNS]], axis=1)), find_limits(np.concatenate(maps))


def _scored(sample_ids: np.ndarray, result: MPFMOutput) -> pd.DataFrame:
    values = np.column_stack([result.score.double(), result.parts.double()])
    return pd.DataFrame(values, columns=SCORE_COLUMNS).assign(sample_id=sample_ids)


def describe_threshold(held_out: HeldOutScores, false_alarm_rate: float, confidence: float) -> dict[str, Any]:
    """What the card says of thresholds: for one rate here, for any other from the held-out scores."""
    threshold = held_out.threshold(false_alarm_rate, confidence)
    misses = count_misses(held_out, false_alarm_rate, confidence)
    return {
        "threshold": asdict(threshold),
        "misses": misses.to_dict("records"),
        "guarantee": held_out.describe(threshold),
        "advice": advise(misses, false_alarm_rate),
        "to_check": name_unusual_normals(held_out),
    }


def describe_model(fit: ProductionFit, evaluation: dict[str, Any], learned: list[dict[str, Any]]) -> dict[str, Any]:
    """The card: what the model is, what it was made from and how images are prepared for it."""
    run, samples = fit.run, fit.samples
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
            "digest": fit.features.digest,
            "normals": len(run["train_normals"]),
            "anomalies": len(run["known_anomalies"]),
            "classes": {str(name): int(number) for name, number in known["defect_class"].value_counts().items()},
            "licence": SOURCES[run["dataset"]].licence if run["dataset"] in SOURCES else "yours",
        },
        "parameters": {name: piece.details["parameters"] for name, piece in fit.fits.items()},
        "seed": run["seed"],
        "pixel_range": ranges[0] if ranges else "",
        "keep_proportions": fit.features.store.spec.keep_proportions,
        "backbones": [
            asdict(spec) | {"licence": LICENCES.get(spec.backbone, "see where the weights come from")}
            for spec in fit.features.specs
        ],
        "evaluation": evaluation,
        "learned": learned,
    }


def make_gallery(fit: ProductionFit, detector: MPFMDetector) -> Gallery:
    """Some of the normals and some of the known anomalies."""
    halves = fit.run["train_normals"], fit.run["known_anomalies"]
    chosen = [name for half in halves for name in spread(half, MAX_IN_GALLERY)]
    table = fit.samples.set_index("sample_id").loc[chosen]
    thumbnails = [to_jpeg(image, THUMBNAIL) for image in fit.images.thumbnails(table)]
    shown = pd.DataFrame({"sample_id": chosen, "defect_class": table["defect_class"].tolist(), "thumbnail": thumbnails})
    return Gallery(shown, standardised(chosen, fit, detector).numpy())


def add_likeness(
    held_out: HeldOutScores, gallery: Gallery, fit: ProductionFit, detector: MPFMDetector
) -> HeldOutScores:
    """With the likeness of each normal to the known anomalies of a gallery, compared with normals of other items."""
    items = fit.samples.set_index("sample_id")["item"]
    z, known = torch.from_numpy(gallery.z), gallery.is_known
    normals = held_out.normals["sample_id"]
    same = items[normals].to_numpy()[:, None] == items[gallery.table["sample_id"][~known]].to_numpy()
    found = likeness(standardised(normals.tolist(), fit, detector), z[~known], z[known], torch.tensor(same))
    return HeldOutScores(held_out.table.assign(likeness=pd.Series(found.numpy(), normals.index)))


def standardised(sample_ids: Sequence[str], fit: ProductionFit, detector: MPFMDetector) -> Tensor:
    """z of some samples, of the first backbone."""
    rows = select(fit.features, np.array(sample_ids), [ORIGINAL]).of_backbone(0)
    return detector.first.standardiser.z_of(rows).cpu()


def spread(values: Sequence[Value], most: int) -> list[Value]:
    """At most so many of some values, evenly spread over them."""
    return [values[index] for index in np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int)]


def describe_weights(calibration: Artefact) -> list[dict[str, Any]]:
    """What each of the scores that are added counts, in each mode of each backbone."""
    rows, added = [], [f"score_{name}" for name in calibration.details["parameters"]["scores"]]
    for number, fitted in enumerate(load_calibrations(calibration)):
        for mode, weights in enumerate(fitted.part_weights.T.tolist()):
            counts = dict(zip(PART_COLUMNS, weights, strict=True))
            rows.append({"backbone": number, "mode": mode} | {name: counts[name] for name in added})
    return rows
