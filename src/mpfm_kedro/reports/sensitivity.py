"""The sensitivity to K and λ."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD
from mpfm_kedro.evaluation.published import as_columns
from mpfm_kedro.reports.study_figures import draw_sensitivity
from mpfm_kedro.reports.tables import COVERS, by_category, variant_tables, write_tables

NAME = r"(?P<parameter>K|λ)=(?P<value>[\d.e-]+)"
LEGEND = "AUC, mean ± standard deviation over seeds. Published: as the paper prints it, other configuration."


def sensitivity_table(summary: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and value of K or λ, in their order: AUC, and the published AUC.

    Rows are the methods named like K=32 or λ=0.1. Published values that were not measured are kept in cells that were.
    """
    table = summary.merge(as_columns(published), on=CELL_METHOD, how="outer").merge(
        summary[CELL].drop_duplicates(), on=CELL
    )
    named = table["method"].str.extract(f"^{NAME}$")
    table = table.assign(parameter=named["parameter"], value=named["value"].astype(float)).dropna(subset=["value"])
    return table.sort_values(["parameter", "value", *CELL], ignore_index=True)


def write_sensitivity(table: pd.DataFrame, origin: str = "") -> tuple[str, str]:
    """The sensitivity as Markdown and as a page; ``origin`` says how it was made."""
    figures = {f"AUC on {title} (hollow: published)": draw_sensitivity(part) for title, part in by_category(table)}
    return write_tables("Sensitivity", variant_tables(table), [origin, LEGEND, COVERS], figures)
