"""Figures of comparison, ablation, sensitivity and studies, one panel per column of a printed table."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpfm_kedro.evaluation.published import PUBLISHED
from mpfm_kedro.evaluation.ranks import EVERYTHING
from mpfm_kedro.reports.figures import ANOMALY, NORMAL, grid
from mpfm_kedro.reports.tables import Columns, arrange, rows_of

COLOURS = {"ours": ANOMALY, "baseline": NORMAL, "reference": "0.5", "published": "0.2"}
FULL: dict[str, Any] = {"marker": "o", "ls": "none", "ms": 4, "lw": 1}
HOLLOW: dict[str, Any] = {"marker": "o", "ls": "none", "ms": 6, "mfc": "none", "lw": 1}
ROW_HEIGHT = 0.24


def draw_comparison(table: pd.DataFrame) -> Figure:
    """AUC ± standard deviation of every method in the first dataset and category; published results are hollow.

    A published result is in the row of the same method as measured here, if it was.
    """
    columns = _first(table.assign(row=table["method"].str.removesuffix(PUBLISHED)))
    figure, axes, rows = _rows_of_names("row", columns)
    drawn: dict[Any, Any] = {}
    for axis, own in zip(axes, columns.values(), strict=False):
        for kind, part in own.groupby("kind", sort=False):
            style = {"color": COLOURS[str(kind)], **(HOLLOW if kind == "published" else FULL)}
            drawn[kind] = axis.errorbar(part["auc_mean"], part["row"].map(rows), xerr=part["auc_std"], **style)
        axis.set(xlabel="AUC")
        axis.grid(axis="x", alpha=0.3)
    figure.legend(list(drawn.values()), list(drawn), loc="outside lower center", ncols=len(drawn))
    return figure


def draw_ablation(table: pd.DataFrame) -> Figure:
    """AUC of every variant minus that of MPFM as bars with their intervals; published ones are hollow."""
    columns = _first(table[table["difference"].notna()])
    figure, axes, rows = _rows_of_names("method", columns)
    for axis, part in zip(axes, columns.values(), strict=False):
        position = part["method"].map(rows)
        reach = np.abs(part[["low", "high"]].sub(part["difference"], axis=0).to_numpy().T)
        axis.barh(position, part["difference"], xerr=reach, color=NORMAL, ecolor="0.3", height=0.7)
        axis.plot(part["published_difference"], position, color=COLOURS["published"], **HOLLOW)
        axis.axvline(0, color="0.3", lw=0.8)
        axis.set(xlabel="AUC minus that of MPFM")
    return figure


def draw_false_alarms(false_alarms: pd.DataFrame, rate: float = 0.05) -> Figure:
    """Share of false alarms in every mode, one dot per mode and run; large dots: large modes."""
    columns = _first(false_alarms)
    figure, axes, rows = _rows_of_names("method", columns)
    rng = np.random.default_rng(0)
    for axis, part in zip(axes, columns.values(), strict=False):
        position = part["method"].map(rows) + rng.uniform(-0.25, 0.25, len(part))  # so that equal shares stay apart
        size = 100 * part["n_normals"] / part["n_normals"].max()
        axis.scatter(part["rate"], position, s=size, color=NORMAL, alpha=0.4, lw=0)
        axis.axvline(rate, color=ANOMALY, lw=1)
        axis.set(xlabel="false alarms")
    return figure


def draw_sensitivity(table: pd.DataFrame) -> Figure:
    """AUC ± standard deviation over K and over λ, one panel for each and each column; published results are hollow."""
    columns = _first(table)
    panels = [(title, name) for name in rows_of(columns)["parameter"].unique() for title in columns]
    figure, axes = grid(len(panels), sharey=True)
    for axis, (title, name) in zip(axes, panels, strict=False):
        part = columns[title][columns[title]["parameter"] == name].sort_values("value")
        position = np.arange(len(part))
        axis.errorbar(position, part["auc_mean"], yerr=part["auc_std"], color=ANOMALY, **(FULL | {"ls": "-"}))
        published = part[["published_mean", "published_std"]].to_numpy().T
        axis.errorbar(position, published[0], yerr=published[1], color=COLOURS["published"], **HOLLOW)
        axis.set(title=title, xlabel=name, ylabel="AUC", xlim=(-0.5, len(part) - 0.5))
        axis.set_xticks(position, [f"{value:g}" for value in part["value"]])
    return figure


def draw_ranks(ranks: pd.DataFrame) -> Figure:
    """Mean ranks over all cells and by setting and M; a bar joins methods that differ by less than CD.

    Panels are of scopes with at least two datasets, or of all cells where there is no such scope.
    """
    tested = ranks[ranks["critical_difference"].notna()]
    shown = tested if len(tested) else ranks[ranks["scope"] == EVERYTHING]
    scopes = sorted(shown["scope"].unique(), key=lambda scope: scope != EVERYTHING)
    most = int(shown["scope"].value_counts().max()) if scopes else 1
    figure, axes = grid(max(1, len(scopes)), 6.4, 1.3 + ROW_HEIGHT * most, most=2)
    for axis, scope in zip(axes, scopes, strict=False):
        _draw_ranks(axis, scope, shown[shown["scope"] == scope].reset_index(drop=True))
    return figure


def cliques(mean_ranks: np.ndarray, critical: float) -> list[tuple[int, int]]:
    """First and last of each longest row of methods (sorted by rank) that differ by less than CD; no single ones."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(mean_ranks):
        last = int(np.searchsorted(mean_ranks, rank + critical)) - 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def _draw_ranks(axis: Axes, scope: str, ranks: pd.DataFrame) -> None:
    critical = ranks["critical_difference"].iloc[0]
    for position, (rank, kind) in enumerate(zip(ranks["mean_rank"], ranks["kind"], strict=True)):
        axis.plot([rank], [position], color=COLOURS[str(kind)], **FULL)
    joined = [] if np.isnan(critical) else cliques(ranks["mean_rank"].to_numpy(), critical)
    for step, (first, last) in enumerate(joined):
        at = ranks["n_methods"].iloc[0] + 0.6 + 0.35 * step
        axis.plot([at, at], [first - 0.2, last + 0.2], color="0.3", lw=2.5, solid_capstyle="butt", clip_on=False)
    title = "all cells" if scope == EVERYTHING else scope
    known = "" if np.isnan(critical) else f", CD = {critical:.1f}"
    axis.set_title(f"{title}: {ranks['n_datasets'].iloc[0]} datasets{known}", fontsize="medium")
    axis.set(xlabel="mean rank (1 is best); bars: not distinguished", ylim=(len(ranks) - 0.5, -0.5))
    axis.set_xlim(0.5, ranks["n_methods"].iloc[0] + 0.9 + 0.35 * max(1, len(joined)))
    axis.set_yticks(range(len(ranks)), ranks["method"])
    axis.grid(axis="x", alpha=0.3)


def _first(table: pd.DataFrame) -> Columns:
    """The columns of the first dataset and category: of the mean over categories where there are several."""
    return next(iter(arrange(table).values()))


def _rows_of_names(name: str, columns: Columns) -> tuple[Figure, list, dict[str, int]]:
    """One panel per column, which share one row per name, the first on top; and the row of each name."""
    rows = {value: position for position, value in enumerate(rows_of(columns)[name].unique())}
    figure, axes = grid(len(columns), height=0.9 + ROW_HEIGHT * len(rows), sharey=True)
    for axis, title in zip(axes, columns, strict=False):
        axis.set_title(title, fontsize="medium")
    axes[0].set_yticks(list(rows.values()), list(rows))
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return figure, axes, rows
