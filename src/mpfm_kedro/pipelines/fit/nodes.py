"""A production model from all images of a dataset and its collection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.datasets.weights import BackboneWeights
from mpfm_kedro.detectors.pieces import Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile
from mpfm_kedro.experiments.protocol import records
from mpfm_kedro.experiments.specifications import Ours
from mpfm_kedro.experiments.trials import read_trials
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.collection import Collection
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.parallel import torch_device
from mpfm_kedro.parameters import InspectionParameters, PrototypeParameters, RepairParameters, TrainingParameters


def gather_samples(samples: pd.DataFrame, collection: Collection, images: ImageLoader) -> pd.DataFrame:
    """All samples, none of which is kept for a test, and the images of the collection."""
    every = samples.assign(split=np.where(samples["label"] == 1, "anomaly", "train"))
    if collection.table.empty:
        return every
    categories = every["category"].unique()
    if len(categories) > 1:
        raise InputError(f"The collection belongs to one category; choose it with --params=category={categories[0]}")
    learned = collection.samples(str(every["dataset"].iloc[0]), str(categories[0]), images)
    pixel_range = "".join(sorted(set(every["pixel_range"]) - {""}))
    learned["pixel_range"] = np.where(learned["deep"] != "", pixel_range, "")
    return pd.concat([every, learned], ignore_index=True)


def production_specifications(
    runs: pd.DataFrame,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    backbone: Any,  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """MPFM as configured; without a known anomaly, MPFM that knows none."""
    ours = Ours(prototypes, repairs, training, backbone)
    return [ours() if runs["known_anomalies"].map(len).all() else ours.untrained()]


def assemble_model(
    samples: pd.DataFrame,
    runs: pd.DataFrame,
    trials: pd.DataFrame,
    features: Features,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
    images: ImageLoader,
    weights: list[BackboneWeights],
    evaluation: dict[str, Any],
    collection: Collection,
    inspection: InspectionParameters,
    device: str,
) -> Model:
    """The production model with its card."""
    from mpfm_kedro.inspection.production import Fitted, make_model  # with torch, which is slow to import

    (trial,), (run,) = read_trials(trials, runs), records(runs)
    files = {piece.name: (initial_models | models)[trial.piece_name(piece)] for piece in trial.specification.pieces}
    pieces = {name: file.load() for name, file in files.items()}
    fitted = Fitted(run, pieces, features, samples, images, [each.tensors for each in weights])
    learned: list[Any] = collection.table.to_dict("records")
    rate, confidence = inspection.false_alarm_rate, inspection.confidence
    return make_model(fitted, rate, confidence, evaluation, learned, torch_device(device))


def summarise_model(model: Model) -> str:
    """What was made, for the terminal."""
    card = model.card
    data, name = card["data"], " ".join(filter(None, [card["dataset"], card["category"]]))
    return (
        f"A model of {name} was made from {data['normals']:,} normals and {data['anomalies']:,} known anomalies.\n"
        f"{card['promise_in_words']}\n"
        "To use it: kedro run --pipelines=predict --params=images=PATH, with the other parameters of this run"
    )
