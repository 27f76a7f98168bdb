"""Figures of one setting: ROC curves, scores, training curves and sampled features."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

from mpfm_kedro.experiments.columns import PART_COLUMNS, TRAINED, ours

NORMAL, ANOMALY = "#4878a8", "#c44e52"
LOSSES = ["flow_normal", "flow_anomaly", "mim", *PART_COLUMNS, "total"]
USAGE = ["used_prototypes", "assignment_entropy", "information_share"]


def draw_roc_curves(scores: pd.DataFrame, run_metrics: pd.DataFrame) -> Figure:
    """ROC curves, one panel per cell and one line per seed: trained models in red, untrained ones in grey."""
    cells = run_metrics.groupby(["category", "known_class", "n_anomalies"], sort=False)
    figure, axes = grid(cells.ngroups)
    by_trial = dict(tuple(scores.groupby(["run", "method"])))
    for axis, (cell, part) in zip(axes, cells, strict=False):
        for run, method in zip(part["run"], part["method"], strict=True):
            own = by_trial[run, method]
            if own["label"].nunique() < 2:
                continue
            false, true, _ = roc_curve(own["label"], own["score"])
            trained = method == TRAINED
            colour, width = (ANOMALY, 1.2) if trained else ("0.7", 0.8)
            axis.plot(false, true, color=colour, lw=width, zorder=int(trained))
        auc = part["auc"][part["method"] == ours(part["method"])].mean()
        axis.set(title=f"{_name(cell)}\nAUC {auc:.3f}", xlabel="false positive rate", ylabel="true positive rate")
    return figure


def draw_score_histograms(scores: pd.DataFrame) -> Figure:
    """Fused score and its parts, normals against anomalies, over all runs of the trained model, if there is one."""
    own = scores[scores["method"] == ours(scores["method"])]
    columns = ["score", *(column for column in PART_COLUMNS if own[column].notna().any())]
    figure, axes = grid(len(columns))
    for axis, column in zip(axes, columns, strict=False):
        values = own[column].clip(*np.quantile(own[column], [0.005, 0.995]))
        bins = np.histogram_bin_edges(values, bins=50)
        for label, part in values.groupby(own["label"]):
            name, colour = ("anomaly", ANOMALY) if label else ("normal", NORMAL)
            axis.hist(part, bins=bins, color=colour, alpha=0.6, density=True, label=name)
        axis.set(title=column, yticks=[])
    axes[0].legend()
    return figure


def draw_loss_curves(history: pd.DataFrame) -> Figure:
    """Every loss term over the epochs of the flow, or tenths of the heads' steps; mean and range over runs."""
    terms = [term for term in LOSSES if term in history]
    figure, axes = grid(max(1, len(terms)))
    for axis, term in zip(axes, terms, strict=False):
        over_runs = history.groupby("epoch")[term]
        axis.fill_between(over_runs.min().index, over_runs.min(), over_runs.max(), color=NORMAL, alpha=0.25, lw=0)
        axis.plot(over_runs.mean(), color=NORMAL)
        axis.set(title=f"loss of {term}", xlabel="tenth of the steps" if term == "score_a" else "epoch")
    return figure


def draw_prototype_usage(history: pd.DataFrame) -> Figure:
    """Used prototypes, entropy of the assignments and share of the mutual information over the epochs of the flow."""
    columns = [name for name in USAGE if name in history]
    figure, axes = grid(max(1, len(columns)))
    if not columns:
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, "no flow was trained", ha="center", va="center")
    for axis, column in zip(axes, columns, strict=False):
        for _, part in history.groupby("run"):
            axis.plot(part["epoch"], part[column], color=NORMAL, alpha=0.5, lw=0.8)
        axis.set(title=column.replace("_", " "), xlabel="epoch")
    return figure


def draw_sampled_features(sampled_features: pd.DataFrame) -> Figure:
    """Features of normals that the model samples, over real ones, along two directions."""
    figure, (axis,) = grid(1)
    for kind, colour in (("real", "0.6"), ("sampled", NORMAL)):
        part = sampled_features[sampled_features["kind"] == kind]
        axis.scatter(part["first"], part["second"], s=5, color=colour, alpha=0.6, label=kind)
    axis.legend()
    axis.set(title="features of normals", xlabel="first direction", ylabel="second direction")
    return figure


def grid(n: int, height: float = 3, sharey: bool = False) -> tuple[Figure, list]:
    """A figure with ``n`` panels, at most four in a row."""
    columns = min(n, 4)
    rows = -(-n // columns)
    figure = Figure(figsize=(3.2 * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    for axis in axes[n:]:
        axis.set_visible(False)
    return figure, list(axes)


def _name(cell: tuple) -> str:
    category, known_class, n_anomalies = cell
    return ", ".join([*filter(None, [category, known_class and f"known {known_class}"]), f"M={n_anomalies}"])
