"""What a comparison will need: features that are not stored, pieces and scores that are not cached."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import KEY, FeatureStore, row_keys
from mpfm_kedro.datasets.weights import BackboneWeights
from mpfm_kedro.experiments.cache import Cache
from mpfm_kedro.experiments.forecasting import Need, describe_need, forecast_trials
from mpfm_kedro.experiments.trials import read_trials
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parallel import torch_device
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters
from mpfm_kedro.pipelines.features.nodes import specification

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from mpfm_kedro.backbones.extraction import Backbone

TRIED = 8  # views of a batch, of which the first is not timed


def locate_features(
    views: pd.DataFrame,
    images: ImageLoader,
    weights: Sequence[BackboneWeights],
    store: FeatureStore,
    device: str,
    parameters: FeatureParameters,
) -> tuple[Features, dict[str, Any]]:
    """The features of all views whether they are stored or not, and what those that are not will take."""
    from mpfm_kedro.backbones.building import build_backbone

    located, seconds, size, new_views = [], 0.0, 0, 0
    for one in weights:
        backbone = build_backbone(one.name, one.tensors, parameters.layers, parameters.map_layers)
        spec = specification(backbone, one, int(views["image_size"].iloc[0]), parameters)
        folder, keys = store.open(spec), row_keys(views)
        new = views[keys.isin(folder.missing(keys))].drop_duplicates(KEY)
        located.append(Features(views[["sample_id", *KEY]].assign(row=-1), folder))
        seconds += len(new) * _seconds_per_view(new, images, backbone, spec.image_size, device, parameters)
        size += len(new) * spec.row_bytes
        new_views = max(new_views, len(new))
    first, *others = located
    costs = {"new_views": new_views, "extraction_seconds": seconds, "disk_bytes": size}
    return replace(first, beside=tuple(others)), costs


def forecast(
    samples: pd.DataFrame,
    runs: pd.DataFrame,
    trials: pd.DataFrame,
    features: Features,
    extraction: dict[str, Any],
    cache: Cache,
    device: str,
    compute: ComputeParameters,
) -> dict[str, Any]:
    """What is needed in all, by name."""
    fits = forecast_trials(read_trials(trials, runs), features, cache, device, compute)
    disk = {"disk_bytes": extraction["disk_bytes"] + fits["disk_bytes"]}
    views = len(features.index.drop_duplicates(KEY))
    return Need(**{"images": len(samples), "views": views} | extraction | fits | disk).as_record()


def write_forecast(need: dict[str, Any], name: str) -> str:
    """The need in a line."""
    return describe_need(name, Need(**need))


def _seconds_per_view(
    new: pd.DataFrame,
    images: ImageLoader,
    backbone: Backbone,
    image_size: int,
    device: str,
    parameters: FeatureParameters,
) -> float:
    """How long decoding and extraction of one view take here; of a few views that are not stored."""
    from mpfm_kedro.backbones.extraction import ViewImages, extract

    tried = new.iloc[:: max(1, len(new) // (2 * TRIED))][: 2 * TRIED]
    alone = parameters.model_copy(update={"workers": 0, "batch_size": TRIED, "compile": False})
    began, seconds = time.monotonic(), 0.0
    for batch in extract(backbone, ViewImages(tried, images.read, image_size), alone, torch_device(device)):
        seconds, began = (time.monotonic() - began) / len(batch.positions), time.monotonic()
    return seconds
