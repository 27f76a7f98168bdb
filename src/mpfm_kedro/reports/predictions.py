"""Predictions as a page."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mpfm_kedro.inspection.model import Model
from mpfm_kedro.parameters import InspectionParameters
from mpfm_kedro.reports.markup import page


def write_page(
    predictions: pd.DataFrame, model: Model, log_folder: Path, overlays: Path, parameters: InspectionParameters
) -> str:
    """The table as a page."""
    return page("Predictions", [predictions.head(200).to_html()])
