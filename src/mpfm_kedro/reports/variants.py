"""Ablation and sensitivity: variants of MPFM with their published results."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD
from mpfm_kedro.evaluation.false_alarms import uneven_false_alarms
from mpfm_kedro.evaluation.published import as_columns
from mpfm_kedro.reports.pages import write_mean
from mpfm_kedro.reports.study_figures import draw_ablation, draw_false_alarms, draw_sensitivity
from mpfm_kedro.reports.tables import (
    RECALL_TITLES,
    Table,
    arrange,
    rows_of,
    spread,
    value_tables,
    with_interval,
    write_tables,
)

NAME = r"(?P<parameter>K|λ)=(?P<value>[\d.e-]+)"  # of a variant of the sensitivity study


def ablation_table(summary: pd.DataFrame, differences: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and variant: AUC, difference to MPFM with its interval, the published AUC and difference.

    A published result belongs to the variant of its name.
    """
    table = summary.merge(differences, on=CELL_METHOD, how="left").fillna({"verdict": ""})
    return table.merge(as_columns(published), on=CELL_METHOD, how="left")


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


def write_ablation(
    table: pd.DataFrame, separation: pd.DataFrame, false_alarms: pd.DataFrame, origin: str = "", rate: float = 0.05
) -> tuple[str, str]:
    """The ablation, the separation of the scores and the false alarms by mode, as Markdown and as a page."""
    tables = variant_tables(table)
    for title, columns in arrange(separation).items():
        tables += value_tables(title, columns, {"Separation": "margin"})
    for title, columns in arrange(uneven_false_alarms(false_alarms)).items():
        tables += value_tables(title, columns, {"Unevenness of false alarms over modes": "excess"})
    figures = {f"Differences on {title}": draw_ablation(rows_of(columns)) for title, columns in arrange(table).items()}
    for title, columns in arrange(false_alarms).items():
        figures[f"False alarms by mode, {title}"] = draw_false_alarms(rows_of(columns), rate)
    return write_tables("Ablation", tables, figures, origin=origin, rate=rate)


def write_sensitivity(table: pd.DataFrame, origin: str = "") -> tuple[str, str]:
    """The sensitivity as Markdown and as a page; ``origin`` says how it was made."""
    figures = {
        f"AUC on {title} (hollow: published)": draw_sensitivity(rows_of(columns))
        for title, columns in arrange(table).items()
    }
    return write_tables("Sensitivity", variant_tables(table), figures, origin=origin)


def variant_tables(table: pd.DataFrame) -> list[Table]:
    """AUC of the variants in every column, with difference and published AUC if there are any; then their recall."""
    tables, recalls = [], []
    for title, columns in arrange(table).items():
        shown = []
        for name, part in columns.items():
            shown.append(spread({name: part}, lambda row: write_mean(row, "auc"), "variant"))
            if "difference" in part and part["difference"].notna().any():
                shown.append(spread({"difference": part}, with_interval))
            if part["published_mean"].notna().any():
                shown.append(spread({"published": part}, lambda row: write_mean(row, "published")))
        methods = pd.Index(rows_of(columns)["method"].unique(), name="variant")
        tables.append(Table(title, {"": pd.concat([rows.reindex(methods) for rows in shown], axis=1).fillna("")}, []))
        recalls += value_tables(title, columns, RECALL_TITLES)
    return [*tables, *recalls]
