"""Which views of which samples are needed, and their features."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import (
    KEY,
    FeatureSpec,
    FeatureStore,
    extraction_libraries,
    extraction_version,
    row_keys,
)
from mpfm_kedro.datasets.weights import BackboneWeights
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import in_units
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import CUTMIX, ORIGINAL
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters
from mpfm_kedro.pipelines.features.shards import Shard, extract_here, extract_on_dask, named_loss_of_readers
from mpfm_kedro.progress import progress
from mpfm_kedro.sources.samples import parse_crop

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from mpfm_kedro.backbones.extraction import Backbone

logger = logging.getLogger(__name__)
AUTO = "auto"
SMALL, LARGE = 224, 448


def plan_views(samples: pd.DataFrame, image_size: Any, parameters: FeatureParameters) -> pd.DataFrame:
    """One row per image that the backbone will see, with the size in pixels (``auto``: chosen here).

    The original of every readable sample; CutMix pseudo-anomalies of training normals; augmented views of anomalies,
    any of which may become a known one. A deep image is another one in another range: its content names both.
    """
    if "pixel_range" not in samples:
        raise InputError("The stored samples are of another version; replace them with kedro run --pipelines=ingestion")
    readable = samples[samples["problem"] == ""]
    scaled = ("@" + readable["pixel_range"]).where(readable["pixel_range"] != "", "")
    readable = readable.assign(content_hash=readable["content_hash"] + scaled)
    train, anomalies = readable[readable["split"] == "train"], readable[readable["split"] == "anomaly"]
    size = fitting_size(train) if image_size == AUTO else image_size
    plan = [(readable, ORIGINAL)]
    plan += [(train, f"{CUTMIX}{number}") for number in range(parameters.cutmix_views)]
    plan += [(anomalies, view) for view in parameters.anomaly_views]
    columns = ["sample_id", "path", "crop", "pixel_range", "content_hash"]
    return pd.concat([part[columns].assign(view=view, image_size=size) for part, view in plan], ignore_index=True)


def plan_mpfm_views(samples: pd.DataFrame, image_size: Any, parameters: FeatureParameters) -> pd.DataFrame:
    """The views that MPFM reads: all but the CutMix pseudo-anomalies, which are for baselines."""
    return plan_views(samples, image_size, parameters.model_copy(update={"cutmix_views": 0}))


def fitting_size(normals: pd.DataFrame) -> int:
    """The size that fits these images or crops: 448 if the median of their shorter sides is at least that, else 224.

    Small defects of large images vanish at 224; small images gain nothing from more pixels than they have, at four
    times the cost.
    """
    boxes = [parse_crop(crop) or (0, 0, *side) for crop, *side in normals[["crop", "width", "height"]].to_numpy()]
    sides = [min(right - left, lower - upper) for left, upper, right, lower in boxes]
    return LARGE if sides and median(sides) >= LARGE else SMALL


def extract_features(
    views: pd.DataFrame,
    images: ImageLoader,
    weights: Sequence[BackboneWeights],
    store: FeatureStore,
    device: str,
    parameters: FeatureParameters,
    compute: ComputeParameters,
) -> Features:
    """Compute the rows that the stores do not have yet, and locate those of all views, in each backbone."""
    first, *others = [_extract(views, images, one, store, device, parameters, compute) for one in weights]
    return replace(first, beside=tuple(others))


@named_loss_of_readers()
def _extract(
    views: pd.DataFrame,
    images: ImageLoader,
    weights: BackboneWeights,
    store: FeatureStore,
    device: str,
    parameters: FeatureParameters,
    compute: ComputeParameters,
) -> Features:
    from mpfm_kedro.backbones.building import build_backbone
    from mpfm_kedro.backbones.extraction import images_per_batch

    backbone = build_backbone(weights.name, weights.tensors, parameters.layers, parameters.map_layers)
    spec = specification(backbone, weights, int(views["image_size"].iloc[0]), parameters)
    folder, keys = store.open(spec), row_keys(views)
    if folder.missing(keys):
        with folder.writing() as writer:
            # asked again: another process may have written some while this one waited
            new = views[keys.isin(folder.missing(keys))].drop_duplicates(KEY)
            need = in_units(store.check_room(spec, len(new)))
            message = "Features: %d of %d views are new to %s at %d px, %s in %s"
            logger.info(message, len(new), keys.nunique(), spec.backbone, spec.image_size, need, folder.folder)
            wanted = set(row_keys(new))
            size = images_per_batch(backbone, spec.image_size, parameters.batch_size)
            filled = _fill_batches(new, views, size) if folder.is_damaged() else new
            whole = Shard(filled, images, spec.image_size, device, parameters)
            if compute.dask_scheduler is not None:
                rows = extract_on_dask(whole, backbone, weights, compute)
            else:
                rows = extract_here(whole, backbone)
            with progress("Features", len(new), "images") as bar:
                for names, pooled, maps in rows:
                    kept = [place for place, name in enumerate(names) if name in wanted]
                    writer.append([names[place] for place in kept], pooled[kept], maps[kept])
                    bar.advance(len(kept))
    return Features.locate(views, folder)


def _fill_batches(new: pd.DataFrame, views: pd.DataFrame, size: int) -> pd.DataFrame:
    """New views, and as many others as fill the last batch: its size can decide the rounding.

    So a row that was damaged gets the numbers that it had.
    """
    others = views[~row_keys(views).isin(row_keys(new))].drop_duplicates(KEY)
    return pd.concat([new, others.head(-len(new) % size)], ignore_index=True)


def specification(
    backbone: Backbone, weights: BackboneWeights, image_size: int, parameters: FeatureParameters
) -> FeatureSpec:
    """What decides the features; their shapes are those of a black image.

    The image size is the nearest one that the backbone accepts.
    """
    import torch

    from mpfm_kedro.backbones.building import accepted_size

    image_size = accepted_size(backbone, image_size)
    with torch.inference_mode():
        black = torch.zeros(1, 3, image_size, image_size, dtype=torch.uint8)
        pooled, maps = backbone.features(black, parameters.statistics)
    return FeatureSpec(
        backbone=weights.name,
        weights_digest=weights.digest,
        image_size=image_size,
        layers=backbone.layers,
        map_layers=backbone.map_layers,
        statistics=tuple(parameters.statistics),
        pooled_size=pooled.shape[1],
        map_shape=tuple(maps.shape[1:]),  # type: ignore[arg-type]
        precision=parameters.precision,
        version=extraction_version(f"{type(backbone).__name__} {backbone.version}"),
        libraries=extraction_libraries(("timm",) if weights.name.startswith("timm/") else ()),
    )
