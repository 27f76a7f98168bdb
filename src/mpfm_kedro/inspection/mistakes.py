"""Mistakes of a setting: the anomalies that were missed and the false alarms, with the effect of a threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.detector import load, load_fold_models
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.heat_maps import find_limits, overlay, scale, to_jpeg
from mpfm_kedro.inspection.thresholds import DEFECTIVE, choose_threshold, decide
from mpfm_kedro.protocol.data import select, training_data
from mpfm_kedro.sources.repeats import joined_groups

MISSED, FALSE_ALARM = "missed", "false alarm"
SHOWN = 4  # of each class, and false alarms
SIDE = 320
COLUMNS = ["run", "known_class", "n_anomalies", "kind", "defect_class", "sample", "score", "decision", "image"]
POINTS = ["run", "known_class", "n_anomalies", "guaranteed", "false_alarms", "precision", "recall"]


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
        confidence: of the guarantee.
        device: where the detector computes.
    """
    data = training_data(dict(run), features)
    fold_models = load_fold_models(pieces, data.anomalies.source, run["seed"], device)
    held_out = [fold.detector.inspect(data.normals.take(fold.normals)) for fold in fold_models]
    item_of = dict(zip(samples["sample_id"], joined_groups(samples), strict=True))
    items = [item_of[run["train_normals"][i]] for fold in fold_models for i in fold.normals]
    held_out_scores = np.concatenate([fold.score.numpy() for fold in held_out])
    threshold = choose_threshold(held_out_scores, rate, confidence, np.array(items))
    limits = find_limits(np.concatenate([smooth_maps(fold.positions.numpy()).ravel() for fold in held_out]))
    rows = samples.set_index("sample_id").loc[scores["sample"]]
    table = scores[["sample", "label", "score"]].assign(defect_class=rows["defect_class"].to_numpy())
    table["decision"] = decide(table["score"], threshold)
    chosen = _worst(table)
    positions = load(pieces, device).position_scores(select(features, chosen["sample"].to_numpy(), [ORIGINAL]))
    heat_maps = scale(smooth_maps(positions), *limits)
    files = rows.loc[chosen["sample"], ["path", "crop", "pixel_range"]].to_numpy()
    images = [to_jpeg(overlay(read(*file), heat), SIDE) for file, heat in zip(files, heat_maps, strict=True)]
    named = {name: run[name] for name in ("run", "known_class", "n_anomalies")}
    return chosen.assign(image=images, **named)[COLUMNS], named | _operating_point(table, threshold.rate_guaranteed)


def _worst(table: pd.DataFrame) -> pd.DataFrame:
    """The anomalies of each class with the lowest scores, and the normals with the highest."""
    anomalies = table[table["label"] == 1].sort_values("score").groupby("defect_class").head(SHOWN)
    normals = table[table["label"] == 0].sort_values("score", ascending=False).head(SHOWN)
    found = pd.concat([anomalies.assign(kind=MISSED), normals.assign(kind=FALSE_ALARM)])
    return found.sort_values(["kind", "defect_class"], kind="stable", ignore_index=True)


def _operating_point(table: pd.DataFrame, guaranteed: float) -> dict[str, float]:
    """The effect of the threshold on the test images; undefined values are NaN."""
    defective, anomaly = table["decision"] == DEFECTIVE, table["label"] == 1
    hits = float((defective & anomaly).sum())
    return {
        "guaranteed": guaranteed,
        "false_alarms": float(defective[~anomaly].mean()),
        "precision": hits / defective.sum() if defective.any() else np.nan,
        "recall": hits / anomaly.sum() if anomaly.any() else np.nan,
    }
