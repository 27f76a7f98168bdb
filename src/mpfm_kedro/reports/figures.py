"""Figures of one setting: ROC curves, scores, training curves and sampled features.

A figure is a list of panels. As a file it shows them side by side; on a page each panel is an image of its own, so that
a wide screen has several in a row and a phone one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from mpfm_kedro.evaluation.columns import PART_COLUMNS, TRAINED, UNTRAINED, ours
from mpfm_kedro.inspection.heat_maps import to_jpeg

NORMAL, ANOMALY = "#4878a8", "#c44e52"
PANEL = ["category", "known_class", "n_anomalies"]
METHODS = {UNTRAINED: (NORMAL, "--"), TRAINED: (ANOMALY, "-")}
LOSSES = ["score_a", "score_n", "score_r", "score_g", "flow_n", "flow_a", "mim", "total"]
USAGE = ["used_prototypes", "information_share"]
FALSE_POSITIVES = np.linspace(0, 1, 201)
SIDE = 96  # of a typical image of a group
FENCE = 10.0  # interquartile ranges beyond the quartiles of normals; what is further out is counted in the last bar


class Panel(NamedTuple):
    """One panel: its title and the function that draws it."""

    title: str
    draw: Callable[[Axes], None]

    def alone(self, wide: bool = False) -> Figure:
        """The panel as a figure of its own."""
        figure = Figure(figsize=(7.6 if wide else 5.4, 3.6), layout="constrained")
        self.onto(figure.subplots())
        return figure

    def onto(self, axis: Axes) -> None:
        """Draw on an axis, under the title."""
        self.draw(axis)
        axis.set_title(self.title, fontsize="medium")


def tabulate_roc_curves(scores: pd.DataFrame, run_metrics: pd.DataFrame) -> pd.DataFrame:
    """The ROC curves of all cells with tested anomalies: mean over seeds, and their range.

    One row per cell, method and share of ``false_alarms``: ``recall``, ``recall_low``, ``recall_high``, and the mean
    ``auc`` of the curve.
    """
    from sklearn.metrics import roc_curve  # slow to import

    by_trial = dict(tuple(scores.groupby(["run", "method"])[["label", "score"]]))
    tables = [pd.DataFrame(columns=[*PANEL, "method", "false_alarms", "recall"])]
    for key, own in run_metrics[run_metrics["auc"].notna()].groupby([*PANEL, "method"], sort=False):
        curves = [roc_curve(*by_trial[tuple(trial)].to_numpy().T) for trial in own[["run", "method"]].to_numpy()]
        rates = np.stack([np.interp(FALSE_POSITIVES, false, true) for false, true, _ in curves])
        cell = pd.DataFrame(dict(zip([*PANEL, "method"], key, strict=True)), index=range(len(FALSE_POSITIVES)))
        curve = {"recall": rates.mean(0), "recall_low": rates.min(0), "recall_high": rates.max(0)}
        tables.append(cell.assign(false_alarms=FALSE_POSITIVES, **curve, auc=own["auc"].mean()))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def tabulate_curves(roc: pd.DataFrame, history: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The curves for `dvc plots`: recall of each method, mean over cells, and the terms of the loss, mean over runs."""
    losses = [name for name in LOSSES if name in history]
    return {
        "roc": roc.pivot_table("recall", "false_alarms", "method", sort=False).reset_index(),
        "losses": history.groupby("epoch", as_index=False)[losses].mean(),
    }


def list_panels(
    scores: pd.DataFrame, roc: pd.DataFrame, history: pd.DataFrame, sampled_features: pd.DataFrame
) -> dict[str, list[Panel]]:
    """The panels of a setting by the name of their figure."""
    own = scores[scores["method"] == ours(scores["method"])]
    used = [column for column in PART_COLUMNS if own[column].nunique() > 1]  # without known anomalies two are not
    cells, losses, usage = roc.groupby(PANEL, sort=False), history.groupby("epoch"), history.groupby("run")
    return {
        "roc_curves": [Panel(_name(cell), partial(_draw_roc_curves, part)) for cell, part in cells],
        "score_histograms": [
            Panel(column, partial(_draw_scores, own[column], own["label"])) for column in ["score", *used]
        ],
        "loss_curves": [
            Panel(f"loss of {term}", partial(_draw_loss, losses[term])) for term in LOSSES if term in history
        ],
        "prototype_usage": [
            Panel(name.replace("_", " "), partial(_draw_usage, usage, name)) for name in USAGE if name in history
        ],
        "sampled_features": [Panel("features of normals", partial(_draw_features, sampled_features))],
    }


def _draw_roc_curves(part: pd.DataFrame, axis: Axes) -> None:
    """Mean over seeds of each method, their range as a band."""
    curves = dict(tuple(part.groupby("method")))
    axis.plot([0, 1], [0, 1], color="0.8", lw=0.8)
    for method in [name for name in METHODS if name in curves]:
        (colour, line), curve = METHODS[method], curves[method]
        rate, label = curve["false_alarms"], f"{method}: AUC {curve['auc'].iloc[0]:.3f}"
        axis.fill_between(rate, curve["recall_low"], curve["recall_high"], color=colour, alpha=0.2, lw=0)
        axis.plot(rate, curve["recall"], color=colour, ls=line, lw=1.6, label=label)
    axis.set(xlabel="false alarms among normals", ylabel="anomalies found", xlim=(0, 1), ylim=(0, 1.02))
    axis.legend(loc="lower right", fontsize="small")


def _draw_scores(score: pd.Series, label: pd.Series, axis: Axes) -> None:
    """Normals against anomalies, over all runs."""
    values = within_fences(score, label == 0)
    bins = np.histogram_bin_edges(values, bins=50)
    first, last = int((score < values).any()), int((score > values).any())  # bars of outliers
    heights = []
    for kind, name, colour in ((0, "normal", NORMAL), (1, "anomaly", ANOMALY)):
        if (label == kind).any():
            height = np.histogram(values[label == kind], bins, density=True)[0]
            axis.stairs(height, bins, fill=True, color=colour, alpha=0.6, label=name)
            heights.append(height[first : len(height) - last].max())
    axis.set(yticks=[], ylabel="share of images", ylim=(0, 1.1 * max(heights) or None))
    axis.legend(fontsize="small")


def within_fences(values: pd.Series, normal: pd.Series) -> pd.Series:
    """Values with outliers moved to the nearest fence around the normals, so that they do not squeeze all others."""
    low, high = values[normal].quantile([0.25, 0.75])
    reach = FENCE * (high - low)
    return values.clip(low - reach, high + reach) if reach else values


def _draw_loss(over_runs: Any, axis: Axes) -> None:
    """One of the seven terms of the objective, or their sum: mean and range over runs."""
    mean = over_runs.mean()
    axis.fill_between(mean.index, over_runs.min(), over_runs.max(), color=NORMAL, alpha=0.25, lw=0)
    axis.plot(mean, color=NORMAL)
    axis.set(xlabel="epoch", ylabel="loss")


def _draw_usage(runs: Any, column: str, axis: Axes) -> None:
    """How many prototypes are used, or the share of the mutual information."""
    for _, part in runs:
        axis.plot(part["epoch"], part[column], color=NORMAL, alpha=0.5, lw=0.8)
    axis.set(xlabel="epoch")


def _draw_features(sampled_features: pd.DataFrame, axis: Axes) -> None:
    """Features of normals that the model samples, over real ones, along two directions."""
    for kind, colour in (("real", "0.6"), ("sampled", NORMAL)):
        part = sampled_features[sampled_features["kind"] == kind]
        axis.scatter(part["first"], part["second"], s=5, color=colour, alpha=0.6, label=kind)
    axis.legend(fontsize="small")
    axis.set(xlabel="first direction", ylabel="second direction")


def draw_side_by_side(panels: list[Panel]) -> Figure:
    """All panels in one figure, or what to say if there is none."""
    figure, axes = grid(max(1, len(panels)))
    if not panels:
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, "nothing was trained, or no anomaly was tested", ha="center", va="center")
    for axis, panel in zip(axes, panels, strict=False):
        panel.onto(axis)
    return figure


def grid(
    n: int, width: float | None = None, height: float = 3, most: int = 4, sharey: bool = False
) -> tuple[Figure, list]:
    """A figure with ``n`` panels, at most ``most`` in a row; one that is alone has room for its legend."""
    columns = min(n, most)
    rows = -(-n // columns)
    size = columns * (width or (3.2 if columns > 1 else 4.8)), rows * height
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    for axis in axes[n:]:
        axis.set_visible(False)
    return figure, list(axes)


def _name(cell: tuple) -> str:
    category, known_class, n_anomalies = cell
    known = f"known class {known_class}" if known_class else ""
    return ", ".join([*filter(None, [category, known]), f"M={n_anomalies}"])


def to_strip(thumbnails: list[Image.Image]) -> bytes:
    """Some images side by side, as JPEG."""
    strip = Image.new("RGB", (SIDE * max(1, len(thumbnails)), SIDE), "white")
    for number, image in enumerate(thumbnails):
        small = image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        strip.paste(small, (number * SIDE, 0))
    return to_jpeg(strip, strip.width)
