"""Predictions of a production model for new images."""

import logging
from collections import Counter
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.batches import compare_batch
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import Model, describe_origin
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters
from mpfm_kedro.reports.pages import render

logger = logging.getLogger(__name__)


def predict_images(
    images: str,
    model: Model,
    log_folder: Path,
    folder: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
) -> pd.DataFrame:
    """One row per image that the parameter ``images`` names, the highest score first; overlays are in ``folder``."""
    from mpfm_kedro.inspection.inspector import Inspector  # with torch, which is slow to import
    from mpfm_kedro.inspection.predictions import OVERLAYS, TABLE, PredictionLog, predict_files

    if (folder / TABLE).exists():
        raise InputError(f"Parameter 'batch' = '{folder.name}': there are predictions in {folder}; choose another name")
    files = find_images(images)
    logger.info("%d files of %s, %s", len(files), images, describe_origin(model.card))
    inspector = Inspector(model, parameters.device, ingestion.max_megapixels)
    threshold = inspector.threshold_for(parameters.false_alarm_rate, parameters.confidence)
    log = PredictionLog.of(log_folder, model.card)
    return predict_files(inspector, files, log, threshold, folder / OVERLAYS, parameters.overlays, parameters.workers)


def summarise_predictions(predictions: pd.DataFrame, model: Model) -> str:
    """How many images got which decision, and whether they are like the normals of the model, for the terminal."""
    return render(
        "predicted.txt",
        counts=Counter(predictions["decision"]),
        defective=predictions[predictions["decision"] == "defective"].head(5).to_dict("records"),
        shift=compare_batch(predictions, model.calibration),
    ).rstrip()
