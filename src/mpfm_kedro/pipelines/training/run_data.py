"""The features of one run: what it may learn from, what calibrates it, what tests it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfm_kedro.backbones.views import CUTMIX, ORIGINAL
from mpfm_kedro.baselines.method import TrainingData
from mpfm_kedro.io.feature_store import KEY, Features
from mpfm_kedro.model.feature_rows import FeatureRows


@dataclass(frozen=True)
class RunData:
    """Features by their part in the run; no test sample is among them.

    A share of the training normals is held back: nothing is fitted to them but shrinkage and calibration.
    """

    normals: FeatureRows
    pseudo: FeatureRows
    anomalies: FeatureRows
    held_back: FeatureRows
    held_back_pseudo: FeatureRows


def run_data(run: dict[str, Any], features: Features, held_back_share: float) -> RunData:
    """The training side of a run; the held-back normals are drawn with the run's seed."""
    normals = np.array(run["train_normals"])
    order = np.random.default_rng(run["seed"]).permutation(len(normals))
    n_held_back = max(1, round(held_back_share * len(normals)))
    held_back, fitted = normals[np.sort(order[:n_held_back])], normals[np.sort(order[n_held_back:])]
    cutmix = features.views(CUTMIX)
    return RunData(
        normals=select(features, fitted, [ORIGINAL]),
        pseudo=select(features, fitted, cutmix),
        anomalies=_known_anomalies(run, features),
        held_back=select(features, held_back, [ORIGINAL]),
        held_back_pseudo=select(features, held_back, cutmix),
    )


def all_training_data(run: dict[str, Any], features: Features) -> TrainingData:
    """The training side of a run for a baseline: all training normals, none held back."""
    normals = np.array(run["train_normals"])
    return TrainingData(
        normals=select(features, normals, [ORIGINAL]),
        pseudo=select(features, normals, features.views(CUTMIX)),
        anomalies=_known_anomalies(run, features),
    )


def _known_anomalies(run: dict[str, Any], features: Features) -> FeatureRows:
    """The known anomalies as they are, then in turned views."""
    known = features.index["sample_id"].isin(run["known_anomalies"])
    turned = sorted(set(features.index["view"][known]) - {ORIGINAL})
    return select(features, np.array(run["known_anomalies"]), [ORIGINAL, *turned])


def select(features: Features, sample_ids: np.ndarray, views: list[str]) -> FeatureRows:
    """Features of samples in some views, view after view; ``source`` is the position of the sample."""
    rows = np.concatenate([features.rows(sample_ids, view) for view in views] or [np.empty(0, dtype=np.int64)])
    source = np.tile(np.arange(len(sample_ids)), len(views))
    return FeatureRows(np.asarray(features.store.pooled[rows]), features.store.maps, rows, source)


def content_key(run: dict[str, Any], features: Features, with_anomalies: bool) -> dict[str, Any]:
    """What the training side of a run is made of: feature specification and image contents, in order."""
    ids = [*run["train_normals"], *(run["known_anomalies"] if with_anomalies else [])]
    return {
        "features": features.store.spec.digest,
        "samples": ids,
        "contents": contents(ids, features),
        "seed": run["seed"],
    }


def content_digest(run: dict[str, Any], features: Features, with_anomalies: bool) -> str:
    """Digest of the contents of a run's training side, as models name it."""
    return hashlib.sha256(json.dumps(content_key(run, features, with_anomalies)["contents"]).encode()).hexdigest()


def contents(sample_ids: list[str], features: Features, views: list[str] | None = None) -> list[list[str]]:
    """Content hash, crop and view of samples, in all views or in some; sorted by sample and view."""
    own = features.index[features.index["sample_id"].isin(sample_ids)]
    if views is not None:
        own = own[own["view"].isin(views)]
    return own.sort_values(["sample_id", "view"])[["sample_id", *KEY]].to_numpy().tolist()
