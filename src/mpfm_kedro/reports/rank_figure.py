"""The critical-difference plot: mean ranks of methods, and which of them cannot be distinguished."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpfm_kedro.evaluation.ranks import EVERYTHING
from mpfm_kedro.reports.study_figures import COLOURS, FULL, ROW_HEIGHT

WIDTH = 6.4


def draw_ranks(ranks: pd.DataFrame) -> Figure:
    """Mean ranks over all cells and by setting and M; a bar joins methods that differ by less than CD.

    Panels are of scopes with at least two datasets, or of all cells where there is no such scope.
    """
    tested = ranks[ranks["critical_difference"].notna()]
    shown = tested if len(tested) else ranks[ranks["scope"] == EVERYTHING]
    scopes = sorted(shown["scope"].unique(), key=lambda scope: scope != EVERYTHING)
    most = int(shown["scope"].value_counts().max()) if scopes else 1
    rows = max(1, -(-len(scopes) // 2))
    size = (WIDTH * min(2, max(1, len(scopes))), rows * (1.3 + ROW_HEIGHT * most))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, min(2, max(1, len(scopes))), squeeze=False).ravel()
    for axis in axes[len(scopes) :]:
        axis.set_visible(False)
    for axis, scope in zip(axes, scopes, strict=False):
        _draw(axis, scope, shown[shown["scope"] == scope].reset_index(drop=True))
    return figure


def cliques(mean_ranks: np.ndarray, critical: float) -> list[tuple[int, int]]:
    """First and last of each longest row of methods (sorted by rank) that differ by less than CD; no single ones."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(mean_ranks):
        last = int(np.searchsorted(mean_ranks, rank + critical)) - 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def _draw(axis: Axes, scope: str, ranks: pd.DataFrame) -> None:
    critical = ranks["critical_difference"].iloc[0]
    for place, (rank, kind) in enumerate(zip(ranks["mean_rank"], ranks["kind"], strict=True)):
        axis.plot([rank], [place], color=COLOURS[str(kind)], **FULL)
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
