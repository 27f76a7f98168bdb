"""What kedro-viz shows of a dataset: tables, curves and histograms, small enough for a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from kedro_datasets._typing import PlotlyPreview, TablePreview

BINS = 40


def show_table(table: pd.DataFrame) -> TablePreview:
    """A table with rounded numbers; a cell that holds a list shows how long it is."""
    shown = table.map(_shorten).astype(object)
    return TablePreview(shown.where(table.notna(), "").reset_index(drop=True).to_dict(orient="split"))


def _shorten(cell: Any) -> Any:
    if isinstance(cell, list | np.ndarray):
        return f"{len(cell)} items"
    return round(cell, 4) if isinstance(cell, float) else cell


def show_histogram(table: pd.DataFrame, values: str, by: str) -> PlotlyPreview:
    """How ``values`` are distributed, one colour for each value of ``by``."""
    usual = table[values].clip(*table[values].quantile([0.005, 0.995]))
    edges = np.histogram_bin_edges(usual, bins=BINS)
    traces = []
    for name, part in usual.groupby(table[by]):
        share = np.histogram(part, edges)[0] / len(part)
        centres = (edges[:-1] + edges[1:]) / 2
        bars = {"type": "bar", "x": centres.tolist(), "y": share.tolist(), "opacity": 0.6}
        traces.append(bars | {"name": f"{by} {name}"})
    return _plot(traces, values, f"share of each {by}", barmode="overlay", bargap=0)


def show_curves(table: pd.DataFrame, values: str, over: str, by: str) -> PlotlyPreview:
    """The course of ``values`` over another column, one line for each value of ``by``."""
    traces = [
        {"type": "scatter", "mode": "lines", "x": part[over].tolist(), "y": part[values].tolist(), "name": str(name)}
        for name, part in table.groupby(by)
    ]
    return _plot(traces, over, values)


def _plot(traces: list[dict[str, Any]], x: str, y: str, **layout: Any) -> PlotlyPreview:
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return PlotlyPreview({"data": traces, "layout": {**axes, **layout}})
