"""Images that a model got wrong, and what changes once it has learned them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.detectors.pieces import Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.protocol import make_learning_runs
from mpfm_kedro.experiments.specifications import Ours
from mpfm_kedro.inspection.collection import Collection
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.parameters import (
    IngestionParameters,
    InspectionParameters,
    PrototypeParameters,
    RepairParameters,
    TrainingParameters,
)

SHOWN = 20  # predictions that change, on the terminal


def add_images(
    images: Any,
    label: Any,
    collection: Collection,
    samples: pd.DataFrame,
    model: Model,
    ingestion: IngestionParameters,
) -> tuple[Collection, Model]:
    """What the model has learned with the images that the parameters name, and the model that does not know them yet.

    Images are read before any of them is kept. What an interrupted run had kept is not in the card: it can be learned.
    """
    from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import

    if images is None or label is None:
        raise InputError("Parameters 'images' and 'label' are needed: --params=images=PATH,label=anomaly (or normal)")
    files = find_images(images)
    for file in files:
        read_image(file, model.card["pixel_range"], ingestion.max_megapixels)
    return collection.with_rows(model.card["learned"]).add(files, label, samples), model


def plan_learning(samples: pd.DataFrame, all_samples: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The general setting before and after the collection was learned."""
    learned = all_samples[~all_samples["sample_id"].isin(set(samples["sample_id"]))]
    return make_learning_runs(samples, learned, seed)


def learning_specifications(
    runs: pd.DataFrame,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    backbone: Any,  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """MPFM; where no anomaly was known before, also MPFM that knows none."""
    ours = Ours(prototypes, repairs, training, backbone)
    return [ours()] if runs["known_anomalies"].map(len).all() else [ours(), ours.untrained()]


def compare_predictions(
    before: Model,
    after: Model,
    predictions: pd.DataFrame,
    log_folder: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
    device: str,
) -> pd.DataFrame:
    """Score and decision of all earlier predictions by the model before and the model after learning.

    What the model before has said is in its log. What the new one says goes to a log of its own: the next prediction
    of the same images needs no computing.
    """
    from mpfm_kedro.inspection.inspector import Inspector  # with torch, which is slow to import
    from mpfm_kedro.inspection.prediction_log import PredictionLog
    from mpfm_kedro.inspection.predictions import predict_files

    files = [Path(path) for path in predictions.loc[predictions["error"] == "", "path"] if Path(path).is_file()]
    compared = pd.DataFrame({"path": [str(file) for file in files]}, dtype=str)  # also where there is none
    for name, model in (("before", before), ("after", after)):
        inspector = Inspector(model, device, ingestion.max_megapixels)
        promised = inspector.promised(parameters.false_alarm_rate, parameters.confidence)
        log = PredictionLog.of(log_folder, model.card)
        found = predict_files(inspector, files, log, promised, workers=parameters.workers)
        own = found[["path", "score", "decision"]].drop_duplicates("path").astype({"path": str})
        own = own.rename(columns={"score": f"score_{name}", "decision": f"decision_{name}"})
        compared = compared.merge(own, on="path", how="left")
    return compared


def summarise_learning(before: Model, after: Model, compared: pd.DataFrame, run_metrics: pd.DataFrame) -> str:
    """What has changed, for the terminal."""
    lines = []
    for name, model in (("before", before), ("after", after)):
        lines.append(f"Promise {name}: {model.card['promise_in_words']}")
    flipped = compared[compared["decision_before"] != compared["decision_after"]]
    lines.append(f"Of {len(compared):,} earlier predictions, {len(flipped):,} change:")
    rows: Any = flipped.itertuples()
    lines += [f"  {row.decision_before} → {row.decision_after}  {row.path}" for row in islice(rows, SHOWN)]
    if len(flipped) > SHOWN:
        lines.append(f"  and {len(flipped) - SHOWN:,} more: see compared.csv")
    auc = run_metrics.drop_duplicates("run").set_index("run")["auc"]  # the first row of a run is MPFM
    shown = ", ".join("undefined" if pd.isna(auc[run]) else f"{auc[run]:.3f}" for run in ("before", "after"))
    lines.append(f"AUC of the general setting, before and after learning: {shown}")
    lines.append("To go back: kedro versions list, then kedro versions use DATASET production VERSION")
    return "\n".join(lines)
