"""Which views of which samples are needed, and their features."""

from __future__ import annotations

import logging
from statistics import median
from typing import Any

import pandas as pd

from mpfm_kedro.backbones.views import CUTMIX, ORIGINAL
from mpfm_kedro.io.backbone_weights import BackboneWeights
from mpfm_kedro.io.feature_store import KEY, Features, FeatureSpec, FeatureStore
from mpfm_kedro.io.images import ImageLoader
from mpfm_kedro.parameters import FeatureParameters
from mpfm_kedro.progress import progress
from mpfm_kedro.sources.samples import parse_crop

logger = logging.getLogger(__name__)
AUTO = "auto"
SMALL, LARGE = 224, 448


def plan_views(samples: pd.DataFrame, image_size: Any, parameters: FeatureParameters) -> pd.DataFrame:
    """One row for each image that the backbone will see, and the size at which it will: pixels, or chosen here (auto).

    Every readable sample as it is; CutMix pseudo-anomalies of training normals;
    turned views of anomalies, any of which may become a known one.
    """
    readable = samples[samples["problem"] == ""]
    train, anomalies = readable[readable["split"] == "train"], readable[readable["split"] == "anomaly"]
    size = fitting_size(train) if image_size == AUTO else image_size
    plan = [(readable, ORIGINAL)]
    plan += [(train, f"{CUTMIX}{number}") for number in range(parameters.cutmix_views)]
    plan += [(anomalies, view) for view in parameters.anomaly_views]
    columns = ["sample_id", "path", "crop", "content_hash"]
    return pd.concat([part[columns].assign(view=view, image_size=size) for part, view in plan], ignore_index=True)


def fitting_size(normals: pd.DataFrame) -> int:
    """The size for most of these images or crops: 448 if their shorter sides have as many pixels, else 224.

    Small defects of large images vanish at 224; small images gain nothing from more pixels than they have, at four
    times the cost.
    """
    boxes = [parse_crop(crop) or (0, 0, *side) for crop, *side in normals[["crop", "width", "height"]].to_numpy()]
    sides = [min(right - left, lower - upper) for left, upper, right, lower in boxes]
    return LARGE if sides and median(sides) >= LARGE else SMALL


def extract_features(
    views: pd.DataFrame,
    images: ImageLoader,
    weights: BackboneWeights,
    store: FeatureStore,
    device: str,
    parameters: FeatureParameters,
) -> Features:
    """Compute the rows that the store does not have yet, and say where every view's row is."""
    import torch

    from mpfm_kedro.backbones.extraction import Backbone, ViewImages, extract
    from mpfm_kedro.compute import torch_device

    image_size = int(views["image_size"].iloc[0])
    backbone = Backbone(weights.name, weights.tensors, parameters.layers, parameters.map_layers)
    with torch.inference_mode():
        black = torch.zeros(1, 3, image_size, image_size, dtype=torch.uint8)
        pooled, maps = backbone.features(black, parameters.statistics)
    spec = FeatureSpec(
        backbone=weights.name,
        weights_digest=weights.digest,
        image_size=image_size,
        layers=backbone.layers,
        map_layers=backbone.map_layers,
        statistics=tuple(parameters.statistics),
        pooled_size=pooled.shape[1],
        map_shape=tuple(maps.shape[1:]),  # type: ignore[arg-type]
    )
    folder = store.open(spec)
    keys = views[KEY].agg("|".join, axis=1)
    missing = set(folder.missing(keys))
    work = views[keys.isin(missing) & ~keys.duplicated()].reset_index(drop=True)
    if len(work):
        need = store.check_room(spec, len(work))
        logger.info(
            "Features: %d of %d views are new, %.2f GB in %s",
            len(work),
            len(keys.unique()),
            need / 1e9,
            folder.folder,
        )
        batches = extract(
            backbone,
            ViewImages(work, images, image_size),
            parameters.statistics,
            torch_device(device),
            parameters.batch_size,
            parameters.workers,
            parameters.compile,
        )
        with folder.writing() as writer, progress("Features", len(work), "images") as bar:
            names = work[KEY].agg("|".join, axis=1).tolist()
            for pooled, maps in batches:
                done = bar.done
                writer.append(names[done : done + len(pooled)], pooled.numpy(), maps.numpy())
                bar.advance(len(pooled))
    folder = store.open(spec)
    return Features(views[["sample_id", *KEY]].assign(row=keys.map(folder.row_of)), folder)
