"""Images that a model got wrong, and what changes once it has learned them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.collection import Collection
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters

SHOWN = 20  # predictions that change, on the terminal


def add_images(
    images: Any,  # a path; None where it was not given
    label: Any,
    collection: Collection,
    samples: pd.DataFrame,
    model: Model,
    ingestion: IngestionParameters,
) -> tuple[Collection, Model]:
    """The collection of the model with more images, and the model that does not know them yet.

    All images are read before any is kept. Images of an interrupted run are not in the card: they can be learned.
    """
    from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import

    if images is None or label is None:
        raise InputError("Parameters 'images' and 'label' are needed: --params=images=PATH,label=anomaly (or normal)")
    files = find_images(images)
    for file in files:
        read_image(file, model.card["pixel_range"], ingestion.max_megapixels)
    return collection.with_rows(model.card["learned"]).add(files, label, samples), model


def compare_predictions(
    before: Model,
    after: Model,
    predictions: pd.DataFrame,
    log_folder: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
    device: str,
) -> pd.DataFrame:
    """Score and decision of all earlier predictions by the model before and after learning.

    Each model has a log: predictions by the old one are there, and those by the new one need no computing later.
    """
    from mpfm_kedro.inspection.inspector import Inspector  # with torch, which is slow to import
    from mpfm_kedro.inspection.prediction_log import PredictionLog
    from mpfm_kedro.inspection.predictions import predict_files

    files = [Path(path) for path in predictions.loc[predictions["error"] == "", "path"] if Path(path).is_file()]
    tables = []
    for name, model in (("before", before), ("after", after)):
        inspector = Inspector(model, device, ingestion.max_megapixels)
        threshold = inspector.threshold_for(parameters.false_alarm_rate, parameters.confidence)
        log = PredictionLog.of(log_folder, model.card)
        table = predict_files(inspector, files, log, threshold, workers=parameters.workers)
        tables.append(table.drop_duplicates("path").set_index("path")[["score", "decision"]].add_suffix(f"_{name}"))
    return pd.concat(tables, axis=1).rename_axis("path").reset_index()


def summarise_learning(before: Model, after: Model, compared: pd.DataFrame, run_metrics: pd.DataFrame) -> str:
    """What has changed, for the terminal."""
    flipped = compared[compared["decision_before"] != compared["decision_after"]]
    auc = run_metrics.drop_duplicates("run").set_index("run")["auc"]  # the first row of a run is MPFM
    shown = ", ".join("undefined" if pd.isna(auc[run]) else f"{auc[run]:.3f}" for run in ("before", "after"))
    lines = [
        f"Guarantee before learning: {before.card['guarantee']}",
        f"Guarantee after learning: {after.card['guarantee']}",
        f"Of {len(compared):,} earlier predictions, {len(flipped):,} change:",
    ]
    columns = ["decision_before", "decision_after", "path"]
    lines += ["  {} → {}  {}".format(*row) for row in flipped[columns].head(SHOWN).to_numpy()]
    if len(flipped) > SHOWN:
        lines.append(f"  and {len(flipped) - SHOWN:,} more: see compared.csv")
    lines.append(f"AUC of the general setting, without and with all learned images: {shown}")
    lines.append("To go back: kedro versions list, then kedro versions use DATASET VERSION")
    return "\n".join(lines)
