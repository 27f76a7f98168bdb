"""Features: the frozen backbone over every sample and view, once; they are extracted where they are saved."""

import logging
from functools import partial, update_wrapper
from statistics import median
from typing import Any

import pandas as pd
from kedro.pipeline import Pipeline, node

from mpfm_kedro.backbones.features import BackboneWeights
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import CUTMIX, ORIGINAL
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters
from mpfm_kedro.sources.samples import sample_size

logger = logging.getLogger(__name__)
AUTO = "auto"
SMALL, LARGE = 224, 448


def create_pipeline(baselines: bool = False) -> Pipeline:
    """The stage that every study shares; with ``baselines`` also the pseudo-anomalies that some of them read."""
    plan = plan_features if baselines else plan_mpfm_features
    read = ["samples", "images", "backbone_weights", "params:features", "params:compute"]
    return Pipeline([node(plan, read, "features", name="extract_features", tags="extract_features")])


def plan_features(
    samples: pd.DataFrame,
    images: ImageLoader,
    weights: list[BackboneWeights],
    features: FeatureParameters,
    compute: ComputeParameters,
    pseudo: bool = True,
) -> Any:
    """The frozen backbone over every sample and view, once: an ``Extraction``; ``pseudo``-anomalies are by CutMix."""
    from mpfm_kedro.backbones.extraction import Extraction  # with torch, which is slow to import

    features = features if pseudo else features.model_copy(update={"cutmix_views": 0})
    return Extraction(plan_views(samples, features.image_size, features), images, weights, features, compute)


# pseudo-anomalies are for baselines
plan_mpfm_features = update_wrapper(partial(plan_features, pseudo=False), plan_features)


def plan_views(samples: pd.DataFrame, image_size: Any, parameters: FeatureParameters) -> pd.DataFrame:
    """One row per image that the backbone will see, with the size in pixels (``auto``: chosen here).

    The original of every readable sample; CutMix pseudo-anomalies of training normals; augmented views of anomalies,
    any of which may become a known one. A deep image is another one in another range: its content names both.
    """
    readable = samples[samples["problem"] == ""]
    scaled = ("@" + readable["pixel_range"]).where(readable["pixel_range"] != "", "")
    readable = readable.assign(content_hash=readable["content_hash"] + scaled)
    train, anomalies = readable[readable["split"] == "train"], readable[readable["split"] == "anomaly"]
    size = fitting_size(train, image_size)
    plan = [(readable, ORIGINAL)]
    plan += [(train, f"{CUTMIX}{number}") for number in range(parameters.cutmix_views)]
    plan += [(anomalies, view) for view in parameters.anomaly_views]
    columns = ["sample_id", "item", "path", "crop", "pixel_range", "content_hash"]
    return pd.concat([part[columns].assign(view=view, image_size=size) for part, view in plan], ignore_index=True)


def fitting_size(normals: pd.DataFrame, image_size: Any = AUTO) -> int:
    """The size given; ``auto`` is 448 if the median of the shorter sides of images or crops is at least that, else 224.

    Small defects of large images vanish at 224. Small images gain nothing from more pixels than they have, at four
    times the cost, and may lose.
    """
    if image_size != AUTO and image_size <= SMALL:
        return image_size
    sides = [min(sample_size(*row)) for row in normals[["crop", "width", "height"]].to_numpy()]
    if image_size == AUTO:
        return LARGE if sides and median(sides) >= LARGE else SMALL
    if sides and median(sides) < image_size:
        message = "image_size %d enlarges the images, whose shorter sides have %d pixels (median): this adds no detail"
        logger.warning(f"{message}, and lowered AUC by 0.03 and 0.05 on two datasets", image_size, median(sides))
    return image_size
