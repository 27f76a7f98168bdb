"""The features that a run learns from and is tested on, and what keys say of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEY
from mpfm_kedro.images.views import CUTMIX, ORIGINAL
from mpfm_kedro.provenance import key_digest

if TYPE_CHECKING:  # with torch, which is slow to import
    from mpfm_kedro.backbones.rows import FeatureRows
    from mpfm_kedro.detectors.base import TrainingData

VERSION = 1  # of which rows of features a fit learns from, and with which seed


def training_data(run: dict[str, Any], features: Features) -> TrainingData:
    """The training samples of a run, and no test sample."""
    from mpfm_kedro.detectors.base import TrainingData

    normals = np.array(run["train_normals"])
    known = features.index["sample_id"].isin(run["known_anomalies"])
    samples = [*run["train_normals"], *run["known_anomalies"]]
    augmented = sorted(set(features.index["view"][known]) - {ORIGINAL})
    return TrainingData(
        normals=select(features, normals, [ORIGINAL]),
        pseudo=select(features, normals, features.views(CUTMIX)),
        anomalies=select(features, np.array(run["known_anomalies"]), [ORIGINAL, *augmented]),
        items=features.items(samples) if run["by_item"] else None,
    )


def select(features: Features, sample_ids: np.ndarray, views: list[str]) -> FeatureRows:
    """Features of samples in some views, view after view; ``source`` is the position of the sample."""
    from mpfm_kedro.backbones.rows import FeatureRows

    rows = np.concatenate([features.rows(sample_ids, view) for view in views] or [np.empty(0, dtype=np.int64)])
    source = np.tile(np.arange(len(sample_ids)), len(views))
    others = tuple(select(other, sample_ids, views) for other in features.others)
    return FeatureRows(np.asarray(features.store.pooled[rows]), features.store.maps, rows, source, others)


def contents(sample_ids: Iterable[str], features: Features, views: list[str] | None = None) -> list[list[str]]:
    """Content hash, crop and view of samples, in all views or in some; sorted by sample and view."""
    index = features.index[features.index["sample_id"].isin(set(sample_ids))]
    if views is not None:
        index = index[index["view"].isin(views)]
    return index.sort_values(["sample_id", "view"])[["sample_id", *KEY]].to_numpy().tolist()


def learned_digest(sample_ids: tuple[str, ...], by_item: bool, pseudo: bool, features: Features) -> str:
    """Names what training samples show and which are of one item, in all views, with pseudo-anomalies or without."""
    views = None if pseudo else [view for view in features.index["view"].unique() if not view.startswith(CUTMIX)]
    items = features.items(sample_ids).tolist()
    described = {"samples": sample_ids, "contents": contents(sample_ids, features, views)}
    return key_digest(described | ({"items": items} if by_item and len(set(items)) < len(items) else {}))
