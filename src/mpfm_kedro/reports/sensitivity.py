"""The sensitivity to K and λ."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.experiments.columns import CELL, CELL_METHOD
from mpfm_kedro.experiments.published import beside
from mpfm_kedro.reports.layout import COVERS, by_category, variant_tables
from mpfm_kedro.reports.markup import as_markdown, as_page
from mpfm_kedro.reports.study_figures import draw_sensitivity

NAME = r"(?P<parameter>K|λ)=(?P<value>[\d.e-]+)"
LEGEND = "AUC, mean ± standard deviation over seeds. Published: as the paper prints it, other configuration."


def sensitivity_table(summary: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and value of K or λ, in their order: AUC, and the published AUC.

    Rows are the methods named like K=32 or λ=0.1. Published values that were not measured are kept in cells that were.
    """
    table = summary.merge(beside(published), on=CELL_METHOD, how="outer").merge(
        summary[CELL].drop_duplicates(), on=CELL
    )
    named = table["method"].str.extract(f"^{NAME}$")
    table = table.assign(parameter=named["parameter"], value=named["value"].astype(float)).dropna(subset=["value"])
    return table.sort_values(["parameter", "value", *CELL], ignore_index=True)


def write_sensitivity(table: pd.DataFrame, origin: str = "") -> str:
    """The sensitivity as Markdown; ``origin`` says how it was made."""
    return as_markdown(variant_tables(table), [origin, LEGEND, COVERS])


def write_sensitivity_page(table: pd.DataFrame, origin: str = "") -> str:
    """The sensitivity as one HTML page with figures."""
    figures = {f"AUC on {title} (hollow: published)": draw_sensitivity(part) for title, part in by_category(table)}
    return as_page("Sensitivity", variant_tables(table), [origin, LEGEND, COVERS], figures)
