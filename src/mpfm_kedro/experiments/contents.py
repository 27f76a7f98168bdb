"""What samples show, as keys and models name it: by the content of their files, not by their names alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEY
from mpfm_kedro.experiments.cache import cache_key
from mpfm_kedro.images.views import CUTMIX, ORIGINAL

CONTENT_DIGITS = 16


def contents(sample_ids: Iterable[str], features: Features, views: list[str] | None = None) -> list[list[str]]:
    """Content hash, crop and view of samples, in all views or in some; sorted by sample and view."""
    own = features.index[features.index["sample_id"].isin(set(sample_ids))]
    if views is not None:
        own = own[own["view"].isin(views)]
    return own.sort_values(["sample_id", "view"])[["sample_id", *KEY]].to_numpy().tolist()


def learned_contents(sample_ids: Iterable[str], features: Features) -> list[str]:
    """Short names of what samples show, by content and crop; equal for copies of one image."""
    rows = contents(sample_ids, features, [ORIGINAL])
    short = [(content[:CONTENT_DIGITS], crop) for _, content, crop, _ in rows]
    return sorted({f"{content}#{crop}" if crop else content for content, crop in short})


def describe_data(sample_ids: tuple[str, ...], pseudo: bool, features: Features) -> dict[str, Any]:
    """Digest of what training samples show, in all views, with pseudo-anomalies or without; and short names of it."""
    views = None if pseudo else [view for view in features.index["view"].unique() if not view.startswith(CUTMIX)]
    return {
        "data": cache_key(samples=sample_ids, contents=contents(sample_ids, features, views)),
        "learned": learned_contents(sample_ids, features),
    }
