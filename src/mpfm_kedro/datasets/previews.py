"""What kedro-viz shows of a dataset: tables, curves, histograms, images and texts, small enough for a page."""

import base64
import html
import io
from typing import Any

import numpy as np
import pandas as pd
from kedro_datasets._typing import HTMLPreview, ImagePreview, PlotlyPreview, TablePreview
from PIL import Image, ImageOps

BINS = 40
PANEL = 457, 300  # kedro-viz stretches every image to a panel of this shape
# Its Markdown takes two underscores in a line for emphasis; a new line inside an empty tag keeps them apart.
BREAK = '<wbr class="no\nemphasis">'


def show_table(table: pd.DataFrame) -> TablePreview:
    """A table with rounded numbers; a cell that holds a list shows how long it is."""
    shown = table.map(_shorten).astype(object)
    return TablePreview(shown.where(table.notna(), "").reset_index(drop=True).to_dict(orient="split"))


def show_image(image: Image.Image) -> ImagePreview:
    """An image on a white ground with the shape of kedro-viz's panel, which then does not distort it."""
    width, height = PANEL
    scale = max(image.width / width, image.height / height)
    content = io.BytesIO()
    size = round(width * scale), round(height * scale)
    ImageOps.pad(image.convert("RGB"), size, color="white").save(content, format="png")
    return ImagePreview(base64.b64encode(content.getvalue()).decode())


def show_text(text: str) -> HTMLPreview:
    """A text as it is; a line that begins with a tag is no heading, list or table of Markdown."""
    lines = [f"<wbr>{_plain(html.escape(line))}" if line else "" for line in text.splitlines()]
    return HTMLPreview(f"<pre>{chr(10).join(lines)}</pre>")


def show_page(page: str) -> HTMLPreview:
    """An HTML page; kedro-viz would show an empty line for each new line."""
    body = page.partition("<body>")[2] or page
    return HTMLPreview(_plain(body.replace("\n", " ")))


def _plain(text: str) -> str:
    """A text in which underscores and stars mean themselves."""
    return text.replace("_", f"_{BREAK}").replace("*", f"*{BREAK}")


def _shorten(cell: Any) -> Any:
    if isinstance(cell, list | np.ndarray):
        return f"{len(cell)} items"
    return round(cell, 4) if isinstance(cell, float) else cell


def show_histogram(table: pd.DataFrame, values: str, by: str) -> PlotlyPreview:
    """How ``values`` are distributed, one colour for each value of ``by``."""
    usual = table[values].clip(*table[values].quantile([0.005, 0.995]))
    edges = np.histogram_bin_edges(usual, bins=BINS)
    centres = ((edges[:-1] + edges[1:]) / 2).tolist()
    traces = []
    for name, part in usual.groupby(table[by]):
        share = (np.histogram(part, edges)[0] / len(part)).tolist()
        traces.append({"type": "bar", "x": centres, "y": share, "opacity": 0.6, "name": f"{by} {name}"})
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
    return PlotlyPreview({"data": traces, "layout": axes | layout})
