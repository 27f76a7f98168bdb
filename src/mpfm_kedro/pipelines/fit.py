"""A production model from all images of a dataset and its collection."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.features import BackboneWeights, Features
from mpfm_kedro.compute import torch_device
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.items import join_images
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.collection import Collection
from mpfm_kedro.inspection.model import Model, describe_origin
from mpfm_kedro.parameters import AUTO, IngestionParameters, InspectionParameters
from mpfm_kedro.protocol.trials import Trials
from mpfm_kedro.reports.model import name_uncounted
from mpfm_kedro.reports.pages import render
from mpfm_kedro.sources import splits_by_item
from mpfm_kedro.sources.repeats import LEAK


def gather_samples(
    samples: pd.DataFrame, collection: Collection, images: ImageLoader, ingestion: IngestionParameters
) -> pd.DataFrame:
    """All samples, none of which is kept for a test, and the images of the collection."""
    every = samples.assign(
        split=np.where(samples["label"] == 1, "anomaly", "train"), problem=samples["problem"].replace(LEAK, "")
    )
    if collection.table.empty:
        return every
    categories = every["category"].unique()
    if len(categories) > 1:
        raise InputError(f"The collection belongs to one category; choose it with --params=category={categories[0]}")
    learned = collection.samples(str(every["dataset"].iloc[0]), str(categories[0]), images)
    pixel_range = "".join(sorted(set(every["pixel_range"]) - {""}))
    learned["pixel_range"] = np.where(learned["deep"] != "", pixel_range, "")
    if ingestion.item_pattern != AUTO:
        origins = learned["path"].map(lambda path: Path(path).name).map(collection.table.set_index("file")["origin"])
        learned["item"] = origins.str.extract(ingestion.item_pattern)[0].fillna(learned["item"])
    by_item = splits_by_item(every, ingestion.split_by_item)
    return join_images(pd.concat([every, learned], ignore_index=True), ingestion.item_pattern, by_item)


def assemble_model(
    samples: pd.DataFrame,
    models: Trials,
    features: Features,
    images: ImageLoader,
    weights: list[BackboneWeights],
    setting_summaries: dict[str, Any],
    collection: Collection,
    inspection: InspectionParameters,
) -> Model:
    """The production model with its card."""
    from mpfm_kedro.inspection.production import ProductionFit, make_model  # with torch, which is slow to import

    (trial,) = models
    fit = ProductionFit(
        trial.run, models.artefacts(trial), features, samples, images, [backbone.tensors for backbone in weights]
    )
    learned: list[Any] = collection.table.to_dict("records")
    rate, confidence = inspection.false_alarm_rate, inspection.confidence
    return make_model(fit, rate, confidence, setting_summaries, learned, torch_device(inspection.device))


def keep_model(model: Model) -> Model:
    """Keep the model as a version."""
    return model


def summarise_model(model: Model) -> str:
    """What was made, for the terminal."""
    card = model.card
    uncounted = name_uncounted(pd.DataFrame(card["score_weights"])) if card["data"]["anomalies"] else ""
    return render("fitted.txt", card=card, origin=describe_origin(card), uncounted=uncounted)
