"""How the scores of held-out normals and of predictions lie around the two thresholds, as a drawing."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from mpfm_kedro.inspection.thresholds import Threshold
from mpfm_kedro.reports.pages import embed_figure

BINS = 60
NORMAL, PREDICTED = "#9ec9e2", "#b34700"


def draw_histogram(normal_scores: ArrayLike, scores: ArrayLike, threshold: Threshold) -> Markup:
    """Shares of the scores of held-out normals (filled) and of the predictions (line) as an image."""
    normals, predicted = np.asarray(normal_scores, dtype=float), np.asarray(scores, dtype=float)
    thresholds = {"good up to": threshold.good, "defective above": threshold.defective}
    shown = {name: value for name, value in thresholds.items() if value is not None}
    edges = np.histogram_bin_edges([*normals, *predicted, *shown.values()], BINS)
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.set_yscale("function", functions=(np.sqrt, np.square))  # a root, so that few high scores are seen
    filled, line = (np.histogram(values, edges)[0] / max(1, len(values)) for values in (normals, predicted))
    axis.stairs(filled, edges, color=NORMAL, fill=True, label=f"{len(normals):,} held-out normals")
    axis.stairs(line, edges, color=PREDICTED, lw=1.6, label=f"{len(predicted):,} predictions")
    for dashes, (name, value) in zip(("--", ":"), shown.items(), strict=False):
        axis.axvline(value, color="#1a1a1a", ls=dashes, lw=1.2, label=f"{name} {value:.2f}")
    axis.set(xlabel="score (height: square root of the share)", yticks=[], ylim=(0, None))
    axis.spines[["left", "top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=4, frameon=False)
    words = ", ".join(f"{name} {value:.2f}" for name, value in shown.items())
    title = f"Histogram of the scores of held-out normals and of the predictions; {words}"
    return Markup("<img class='histogram' alt='{}' src='{}'>").format(title, embed_figure(figure))
