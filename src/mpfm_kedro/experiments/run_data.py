"""The features of one run: what it may learn from, and samples in chosen views."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.images.views import CUTMIX, ORIGINAL


def training_data(run: dict[str, Any], features: Features) -> TrainingData:
    """The training samples of a run, and no test sample."""
    normals = np.array(run["train_normals"])
    known = features.index["sample_id"].isin(run["known_anomalies"])
    augmented = sorted(set(features.index["view"][known]) - {ORIGINAL})
    return TrainingData(
        normals=select(features, normals, [ORIGINAL]),
        pseudo=select(features, normals, features.views(CUTMIX)),
        anomalies=select(features, np.array(run["known_anomalies"]), [ORIGINAL, *augmented]),
    )


def select(features: Features, sample_ids: np.ndarray, views: list[str]) -> FeatureRows:
    """Features of samples in some views, view after view; ``source`` is the position of the sample."""
    rows = np.concatenate([features.rows(sample_ids, view) for view in views] or [np.empty(0, dtype=np.int64)])
    source = np.tile(np.arange(len(sample_ids)), len(views))
    beside = tuple(select(other, sample_ids, views) for other in features.beside)
    return FeatureRows(np.asarray(features.store.pooled[rows]), features.store.maps, rows, source, beside)
