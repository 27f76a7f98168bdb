"""Figures of comparison, ablation and sensitivity.

Each shows the first dataset and category of its table: the mean over categories where there are several.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mpfm_kedro.evaluation.published import PUBLISHED
from mpfm_kedro.reports.figures import ANOMALY, NORMAL, grid
from mpfm_kedro.reports.tables import by_category, by_column

COLOURS = {"ours": ANOMALY, "baseline": NORMAL, "reference": "0.5", "published": "0.2"}
FULL: dict[str, Any] = {"marker": "o", "ls": "none", "ms": 4, "lw": 1}
HOLLOW: dict[str, Any] = {"marker": "o", "ls": "none", "ms": 6, "mfc": "none", "lw": 1}
ROW_HEIGHT = 0.24


def draw_comparison(table: pd.DataFrame) -> Figure:
    """AUC ± standard deviation of every method, one panel per column of the table; published results are hollow.

    A published result is in the row of the same method as measured here, if it was.
    """
    _, table = next(by_category(table))
    table = table.assign(row=table["method"].str.removesuffix(PUBLISHED))
    columns = by_column(table)
    figure, axes, rows = _rows_of_names(table["row"], columns)
    drawn: dict[Any, Any] = {}
    for axis, own in zip(axes, columns.values(), strict=False):
        for kind, part in own.groupby("kind", sort=False):
            style = HOLLOW if kind == "published" else FULL
            colour = COLOURS[str(kind)]
            place = part["row"].map(rows)
            drawn[kind] = axis.errorbar(part["auc_mean"], place, xerr=part["auc_std"], color=colour, **style)
        axis.set(xlabel="AUC")
        axis.grid(axis="x", alpha=0.3)
    figure.legend(list(drawn.values()), list(drawn), loc="outside lower center", ncols=len(drawn))
    return figure


def draw_ablation(table: pd.DataFrame) -> Figure:
    """AUC of every variant minus that of MPFM as bars with their intervals; published ones are hollow."""
    _, table = next(by_category(table))
    table = table[table["difference"].notna()]
    columns = by_column(table)
    figure, axes, rows = _rows_of_names(table["method"], columns)
    for axis, part in zip(axes, columns.values(), strict=False):
        place = part["method"].map(rows)
        reach = np.abs(part[["low", "high"]].sub(part["difference"], axis=0).to_numpy().T)
        axis.barh(place, part["difference"], xerr=reach, color=NORMAL, ecolor="0.3", height=0.7)
        axis.plot(part["published_difference"], place, color=COLOURS["published"], **HOLLOW)
        axis.axvline(0, color="0.3", lw=0.8)
        axis.set(xlabel="AUC minus that of MPFM")
    return figure


def draw_false_alarms(false_alarms: pd.DataFrame, rate: float = 0.05) -> Figure:
    """Share of false alarms in every mode, one dot per mode and run, one panel per column; large dots: large modes."""
    _, table = next(by_category(false_alarms))
    columns = by_column(table)
    figure, axes, rows = _rows_of_names(table["method"], columns)
    rng = np.random.default_rng(0)
    for axis, part in zip(axes, columns.values(), strict=False):
        place = part["method"].map(rows) + rng.uniform(-0.25, 0.25, len(part))  # so that equal shares stay apart
        size = 100 * part["n_normals"] / part["n_normals"].max()
        axis.scatter(part["rate"], place, s=size, color=NORMAL, alpha=0.4, lw=0)
        axis.axvline(rate, color=ANOMALY, lw=1)
        axis.set(xlabel="false alarms")
    return figure


def draw_sensitivity(table: pd.DataFrame) -> Figure:
    """AUC ± standard deviation over K and over λ, one panel for each and each column; published results are hollow."""
    _, table = next(by_category(table))
    columns = by_column(table)
    panels = [(title, name) for name in table["parameter"].unique() for title in columns]
    figure, axes = grid(len(panels), sharey=True)
    for axis, (title, name) in zip(axes, panels, strict=False):
        part = columns[title][columns[title]["parameter"] == name].sort_values("value")
        place = np.arange(len(part))
        axis.errorbar(place, part["auc_mean"], yerr=part["auc_std"], color=ANOMALY, **(FULL | {"ls": "-"}))
        published = part[["published_mean", "published_std"]].to_numpy().T
        axis.errorbar(place, published[0], yerr=published[1], color=COLOURS["published"], **HOLLOW)
        axis.set(title=title, xlabel=name, ylabel="AUC", xlim=(-0.5, len(part) - 0.5))
        axis.set_xticks(place, [f"{value:g}" for value in part["value"]])
    return figure


def _rows_of_names(names: pd.Series, columns: Iterable[str]) -> tuple[Figure, list, dict[str, int]]:
    """One panel per column, which share one row per name, the first on top; and the row of each name."""
    rows = {name: place for place, name in enumerate(names.unique())}
    titles = list(columns)
    figure, axes = grid(len(titles), height=0.9 + ROW_HEIGHT * len(rows), sharey=True)
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(title, fontsize="medium")
    axes[0].set_yticks(list(rows.values()), list(rows))
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return figure, axes, rows
