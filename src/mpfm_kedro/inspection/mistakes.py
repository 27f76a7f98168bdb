"""Mistakes first: the anomalies that were missed and the false alarms of a setting, with what a threshold would do."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.detector import load, load_fold_models
from mpfm_kedro.experiments.run_data import select, training_data
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.heat_maps import find_limits, overlay, scale
from mpfm_kedro.inspection.thresholds import DEFECTIVE, decide, promise

MISSED, FALSE_ALARM = "missed", "false alarm"
SHOWN = 4  # of each class, and false alarms
SIDE = 320
COLUMNS = ["run", "known_class", "n_anomalies", "kind", "defect_class", "sample", "score", "decision", "image"]
POINTS = ["run", "known_class", "n_anomalies", "promised", "false_alarms", "precision", "recall"]


def find_mistakes(
    run: Mapping[str, Any],
    pieces: Mapping[str, Artefact],
    scores: pd.DataFrame,
    features: Features,
    samples: pd.DataFrame,
    read: Callable[[str, str, str], Any],
    rate: float,
    confidence: float,
    device: torch.device,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The worst misses of each class and the worst false alarms of a run, and precision and recall at a threshold.

    Args:
        run: one run of a setting.
        pieces: of its MPFM.
        scores: sample, label and score of its test samples.
        features: of all samples.
        samples: the sample table.
        read: gives an image by path, crop and range of values.
        rate: false-alarm rate of the threshold.
        confidence: with which it is promised.
        device: where the detector computes.
    """
    data = training_data(dict(run), features)
    fold_models = load_fold_models(pieces, data.anomalies.source, run["seed"], device)
    held_out = [each.detector.inspect(data.normals.take(each.normals)) for each in fold_models]
    promised = promise(np.concatenate([found.score.numpy() for found in held_out]), rate, confidence)
    limits = find_limits(np.concatenate([smooth_maps(found.positions.numpy()).ravel() for found in held_out]))
    classes = samples.set_index("sample_id")["defect_class"]
    table = scores[["sample", "label", "score"]].assign(defect_class=classes.loc[scores["sample"]].to_numpy())
    table["decision"] = decide(table["score"], promised)
    chosen = _worst(table)
    rows = select(features, chosen["sample"].to_numpy(), [ORIGINAL])
    heat = scale(smooth_maps(load(pieces, device).position_scores(rows)), *limits)
    where = samples.set_index("sample_id").loc[chosen["sample"], ["path", "crop", "pixel_range"]].to_numpy()
    images = [_jpeg(overlay(read(*place), own)) for place, own in zip(where, heat, strict=True)]
    named = {name: run[name] for name in ("run", "known_class", "n_anomalies")}
    return chosen.assign(image=images, **named)[COLUMNS], named | _operating_point(table, promised.rate_promised)


def _worst(table: pd.DataFrame) -> pd.DataFrame:
    """The anomalies of each class with the lowest scores, and the normals with the highest."""
    anomalies = table[table["label"] == 1].sort_values("score").groupby("defect_class").head(SHOWN)
    normals = table[table["label"] == 0].sort_values("score", ascending=False).head(SHOWN)
    found = pd.concat([anomalies.assign(kind=MISSED), normals.assign(kind=FALSE_ALARM)])
    return found.sort_values(["kind", "defect_class"], kind="stable", ignore_index=True)


def _operating_point(table: pd.DataFrame, promised: float) -> dict[str, float]:
    """What the threshold does on the test images; undefined values are not a number."""
    defective, anomaly = table["decision"] == DEFECTIVE, table["label"] == 1
    hits = float((defective & anomaly).sum())
    return {
        "promised": promised,
        "false_alarms": float(defective[~anomaly].mean()),
        "precision": hits / defective.sum() if defective.any() else np.nan,
        "recall": hits / anomaly.sum() if anomaly.any() else np.nan,
    }


def _jpeg(image: Any) -> bytes:
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, format="jpeg", quality=85)
    return content.getvalue()
