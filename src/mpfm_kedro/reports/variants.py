"""Ablation and sensitivity: variants of MPFM with their published results."""

from functools import partial

import pandas as pd

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD
from mpfm_kedro.evaluation.false_alarms import uneven_false_alarms
from mpfm_kedro.evaluation.published import as_columns
from mpfm_kedro.reports import tables
from mpfm_kedro.reports.pages import write_mean
from mpfm_kedro.reports.study_figures import draw_ablation, draw_false_alarms, draw_sensitivity

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
    printed = variant_tables(table)
    for title, columns in tables.arrange(separation).items():
        printed += tables.value_tables(title, columns, {"Separation": "margin"})
    for title, columns in tables.arrange(uneven_false_alarms(false_alarms)).items():
        printed += tables.value_tables(title, columns, {"Unevenness of false alarms over modes": "excess"})
    figures = tables.draw_tables("Differences on {}", table, draw_ablation)
    figures |= tables.draw_tables("False alarms by mode, {}", false_alarms, partial(draw_false_alarms, rate=rate))
    return tables.write_tables("Ablation", printed, figures, origin=origin, rate=rate)


def write_sensitivity(table: pd.DataFrame, origin: str = "") -> tuple[str, str]:
    """The sensitivity as Markdown and as a page; ``origin`` says how it was made."""
    figures = tables.draw_tables("AUC on {} (hollow: published)", table, draw_sensitivity)
    return tables.write_tables("Sensitivity", variant_tables(table), figures, origin=origin)


def variant_tables(table: pd.DataFrame) -> list[tables.Table]:
    """AUC of the variants in every column, with difference and published AUC if there are any; then their recall."""
    printed, recalls = [], []
    for title, columns in tables.arrange(table).items():
        shown = []
        for name, part in columns.items():
            shown.append(tables.spread({name: part}, lambda row: write_mean(row, "auc"), "variant"))
            if "difference" in part and part["difference"].notna().any():
                shown.append(tables.spread({"difference": part}, tables.with_interval))
            if part["published_mean"].notna().any():
                shown.append(tables.spread({"published": part}, lambda row: write_mean(row, "published")))
        methods = pd.Index(tables.rows_of(columns)["method"].unique(), name="variant")
        rows = pd.concat([part.reindex(methods) for part in shown], axis=1).fillna("")
        printed.append(tables.Table(title, {"": rows}, []))
        recalls += tables.value_tables(title, columns, tables.RECALL_TITLES)
    return [*printed, *recalls]
