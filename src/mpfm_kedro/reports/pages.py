"""Pages: the templates, which escape all that they show, and what they know of images, tables and decisions."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure

from mpfm_kedro.inspection.thresholds import percent

SIGNS = {"defective": "▲", "uncertain": "◆", "good": "●", "error": "✕"}
SCORES = {  # what each says if it is high
    "g": "the whole image is unlike the normals",
    "a": "some places look like known defects, as the model learned from them",
    "r": "some patches are unlike any patch of a normal",
    "n": "as a whole it is less like normals than like known defects",
}


def embed_figure(figure: Figure) -> str:
    """A figure as the source of an image inside of the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def embed_jpeg(content: bytes) -> str:
    """A JPEG file as the source of an image inside of the page."""
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def data_table(table: pd.DataFrame) -> Markup:
    """A table without its empty columns, which scrolls by itself where the page is narrower."""
    shown = table.loc[:, [name for name in table if not table[name].isin(["", None]).all()]]
    rows = shown.to_html(index=False, border=0, na_rep="undefined", justify="left")  # escapes names and values
    return Markup("<div class='wide'>{}</div>").format(Markup(rows))


def write_mean(row: Mapping[Any, Any], name: str) -> str:
    """Mean with its interval, or else ± standard deviation over several seeds; empty where missing or undefined."""
    mean, low = (row.get(f"{name}_{kind}", np.nan) for kind in ("mean", "low"))
    if np.isnan(mean):
        return ""
    if not np.isnan(low):
        return f"{mean:.3f} [{low:.3f}, {row[f'{name}_high']:.3f}]"
    return f"{mean:.3f}" if row.get("n_seeds") == 1 else f"{mean:.3f} ± {row[f'{name}_std']:.3f}"


def render(template: str, **values: object) -> str:
    """A page, or a text as it is, from a template."""
    return TEMPLATES.get_template(template).render(**values)


TEMPLATES = Environment(
    loader=PackageLoader("mpfm_kedro"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals |= {"signs": SIGNS, "scores": SCORES}
TEMPLATES.filters |= {
    "figure": embed_figure,
    "jpeg": embed_jpeg,
    "data_table": data_table,
    "mean": write_mean,
    "percent": percent,
}
STYLE = render("style.css")
