"""The ablation: variants of MPFM against the whole method, beside the published results."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.evaluation.columns import CELL_METHOD
from mpfm_kedro.evaluation.false_alarms import uneven_false_alarms
from mpfm_kedro.evaluation.published import as_columns
from mpfm_kedro.reports.study_figures import draw_ablation, draw_false_alarms
from mpfm_kedro.reports.tables import COVERS, by_category, value_tables, variant_tables, write_tables

LEGEND = (
    "AUC, mean ± standard deviation over seeds; beside it the difference to MPFM with its 95 % interval over seeds and "
    "test samples (▲ better, ▼ worse than MPFM). Published: as the paper prints it, other configuration."
)
SEPARATION = (
    "Separation: median of the anomalies' scores minus that of the normals, in robust standard deviations of the "
    "normals (1.4826 times their median absolute deviation)."
)
FALSE_ALARMS = (
    "False alarms by mode: the threshold lets at most {:.0%} of a run's test normals pass as anomalies; a dot is their "
    "share in one mode of one run. The mode of an image is that of MPFM for every variant. Unevenness: mean distance "
    "of these shares from that of all normals, less what chance alone would give."
)


def ablation_table(summary: pd.DataFrame, differences: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and variant: AUC, difference to MPFM with its interval, the published AUC and difference.

    A published result belongs to the variant of its name.
    """
    table = summary.merge(differences, on=CELL_METHOD, how="left").fillna({"verdict": ""})
    return table.merge(as_columns(published), on=CELL_METHOD, how="left")


def write_ablation(
    table: pd.DataFrame, separation: pd.DataFrame, false_alarms: pd.DataFrame, origin: str = "", rate: float = 0.05
) -> tuple[str, str]:
    """The ablation, the separation of the scores and the false alarms by mode, as Markdown and as a page."""
    tables = [
        *variant_tables(table),
        *value_tables(separation, "margin", "Separation"),
        *value_tables(uneven_false_alarms(false_alarms), "excess", "Unevenness of false alarms over modes"),
    ]
    figures = {f"Differences on {title}": draw_ablation(part) for title, part in by_category(table)}
    for title, part in by_category(false_alarms):
        figures[f"False alarms by mode, {title}"] = draw_false_alarms(part, rate)
    return write_tables("Ablation", tables, [origin, LEGEND, SEPARATION, FALSE_ALARMS.format(rate), COVERS], figures)
