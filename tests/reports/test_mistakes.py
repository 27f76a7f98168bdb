"""Precision and recall beside the mistakes, also where one of them is undefined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from mpfm_kedro.configuration import project_loader
from mpfm_kedro.inspection.mistakes import COLUMNS, POINTS
from mpfm_kedro.reports.mistakes import show_mistakes


def test_precision_is_undefined_where_nothing_is_called_defective(tmp_path: Path):
    points = [("a", "", 1, 0.05, 0.0, np.nan, 0.0), ("b", "", 5, 0.05, 0.0, 0.5, 0.25)]
    entry = project_loader("test")["catalog"]["{study}.operating_points"]
    pd.DataFrame(points, columns=POINTS).to_csv(tmp_path / "points.csv", **entry["save_args"])
    loaded = pd.read_csv(tmp_path / "points.csv", **entry["load_args"])
    page = "".join(show_mistakes(pd.DataFrame(columns=COLUMNS), loaded))
    assert page.count("undefined") == 1 and "50.0%" in page and "25.0%" in page
