"""Predictions of a production model for new images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters


def predict_images(
    images: Any,  # a path; None where it was not given
    model: Model,
    log_folder: Path,
    overlays: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
    device: str,
) -> pd.DataFrame:
    """One row per image that the parameter ``images`` names, the highest score first."""
    from mpfm_kedro.inspection.inspector import Inspector  # with torch, which is slow to import
    from mpfm_kedro.inspection.prediction_log import PredictionLog
    from mpfm_kedro.inspection.predictions import predict_files

    if images is None:
        raise InputError("Parameter 'images' is missing: name a file, a folder or a pattern, --params=images=PATH")
    inspector = Inspector(model, device, ingestion.max_megapixels)
    threshold = inspector.threshold_for(parameters.false_alarm_rate, parameters.confidence)
    log = PredictionLog.of(log_folder, model.card)
    return predict_files(
        inspector, find_images(images), log, threshold, overlays, parameters.overlays, parameters.workers
    )


def summarise_predictions(predictions: pd.DataFrame) -> str:
    """How many images got which decision, for the terminal."""
    counts = Counter(predictions["decision"])
    shown = ", ".join(
        f"{counts[name]:,} {name}" for name in ("defective", "uncertain", "good", "error") if counts[name]
    )
    lines = [f"{len(predictions):,} images: {shown}."]
    for row in predictions[predictions["decision"] == "defective"].head(5).itertuples():
        lines.append(f"  {row.score:8.2f}  {row.path}")
    return "\n".join(lines)
