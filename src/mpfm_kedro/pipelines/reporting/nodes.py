"""Tables and pictures for people."""

from __future__ import annotations

import base64
import html
import io

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mpfm_kedro.pipelines.scoring.nodes import PART_COLUMNS, TRAINED, UNTRAINED

mpl.use("Agg")
COVERS = (
    "± is the standard deviation over seeds: other known anomalies, another initialisation, other held-back normals; "
    "the split of the normals is fixed."
)
NORMAL, ANOMALY = "#4878a8", "#c44e52"


def write_summary(summary: pd.DataFrame, without_repeats: pd.DataFrame | None = None) -> str:
    """The summary as a text table; where test images repeat others, also the one without them."""
    parts = [_text_table(summary), COVERS]
    if without_repeats is not None and len(without_repeats):
        parts += [_left_out(without_repeats), _text_table(without_repeats)]
    return "\n".join(parts)


def _text_table(summary: pd.DataFrame) -> str:
    shown = pd.DataFrame(
        {
            "dataset": summary["dataset"] + summary["category"].map(lambda name: f" {name}" if name else ""),
            "method": summary["method"],
            "known class": summary["known_class"].replace("", "(any)"),
            "M": summary["n_anomalies"],
            "AUC": plus_minus(summary, "auc"),
            "AP": plus_minus(summary, "ap"),
            "seeds": summary["n_seeds"],
        }
    )
    return shown.to_string(index=False)


def _left_out(without_repeats: pd.DataFrame) -> str:
    number = without_repeats["left_out"].astype(float).mean()
    return (
        "Some test images repeat a training image of their run or an earlier test image: "
        f"without them ({number:.3g} a run on average)"
    )


def plus_minus(summary: pd.DataFrame, metric: str) -> list[str]:
    """Mean ± standard deviation of every row."""
    pairs = zip(summary[f"{metric}_mean"], summary[f"{metric}_std"], strict=True)
    return [f"{mean:.3f} ± {std:.3f}" for mean, std in pairs]


def draw_roc_curves(scores: pd.DataFrame, run_metrics: pd.DataFrame) -> Figure:
    """ROC curves of the trained models, one panel a cell, one line a seed, the untrained ones in grey."""
    from sklearn.metrics import roc_curve

    cells = run_metrics.groupby(["category", "known_class", "n_anomalies"], sort=False)
    figure, axes = grid(cells.ngroups)
    by_run = dict(tuple(scores.groupby(["run", "method"])))
    for axis, (cell, part) in zip(axes, cells, strict=False):
        for run, method in zip(part["run"], part["method"], strict=True):
            own = by_run[run, method]
            false, true, _ = roc_curve(own["label"], own["score"])
            trained = method == TRAINED
            axis.plot(
                false,
                true,
                color=ANOMALY if trained else "0.7",
                lw=1.2 if trained else 0.8,
                zorder=int(trained),
            )
        auc = part["auc"][part["method"] == TRAINED].mean()
        axis.set(title=f"{_name(cell)}\nAUC {auc:.3f}", xlabel="false alarms", ylabel="found anomalies")
    return figure


def draw_score_histograms(scores: pd.DataFrame) -> Figure:
    """Fused score and its four parts, normals against anomalies, over all runs of the trained model."""
    own = scores[scores["method"] == TRAINED]
    figure, axes = grid(1 + len(PART_COLUMNS))
    for axis, column in zip(axes, ["score", *PART_COLUMNS], strict=False):
        values = own[column].clip(*np.quantile(own[column], [0.005, 0.995]))
        bins = np.histogram_bin_edges(values, bins=50)
        for label, colour in ((0, NORMAL), (1, ANOMALY)):
            name = "anomaly" if label else "normal"
            axis.hist(values[own["label"] == label], bins=bins, color=colour, alpha=0.6, density=True, label=name)
        axis.set(title=column, yticks=[])
    axes[0].legend()
    return figure


def draw_loss_curves(history: pd.DataFrame) -> Figure:
    """Every loss term over the epochs, mean and range over runs."""
    terms = ["flow_normal", "flow_anomaly", "mim", "score_g", "score_a", "score_r", "score_n", "total"]
    terms = [term for term in terms if term in history]
    figure, axes = grid(max(1, len(terms)))
    for axis, term in zip(axes, terms, strict=False):
        over_runs = history.groupby("epoch")[term]
        axis.fill_between(over_runs.min().index, over_runs.min(), over_runs.max(), color=NORMAL, alpha=0.25, lw=0)
        axis.plot(over_runs.mean(), color=NORMAL)
        axis.set(title=term, xlabel="epoch")
    return figure


def draw_prototype_usage(history: pd.DataFrame) -> Figure:
    """Used prototypes, entropy of the assignments and share of the mutual information over the epochs."""
    columns = [name for name in ("used_prototypes", "assignment_entropy", "information_share") if name in history]
    figure, axes = grid(max(1, len(columns)))
    for axis, column in zip(axes, columns, strict=False):
        for _, part in history.groupby("run"):
            axis.plot(part["epoch"], part[column], color=NORMAL, alpha=0.5, lw=0.8)
        axis.set(title=column.replace("_", " "), xlabel="epoch")
    return figure


def draw_sampled_features(sampled_features: pd.DataFrame) -> Figure:
    """Features of normals that the model draws, over real ones, along two directions."""
    figure, (axis,) = grid(1)
    for kind, colour in (("real", "0.6"), ("sampled", NORMAL)):
        part = sampled_features[sampled_features["kind"] == kind]
        axis.scatter(part["first"], part["second"], s=5, color=colour, alpha=0.6, label=kind)
    axis.legend()
    axis.set(title="features of normals", xlabel="first direction", ylabel="second direction")
    return figure


def write_report(
    summary: pd.DataFrame,
    run_metrics: pd.DataFrame,
    scores: pd.DataFrame,
    history: pd.DataFrame,
    without_repeats: pd.DataFrame | None = None,
    sampled_features: pd.DataFrame | None = None,
) -> str:
    """One HTML page with the tables and pictures, complete in itself."""
    title = f"MPFM on {run_metrics['dataset'].iloc[0]}, {run_metrics['setting'].iloc[0]} setting"
    pictures = {
        "ROC curves (red: trained, grey: 0 iterations)": draw_roc_curves(scores, run_metrics),
        "Scores of the tested images": draw_score_histograms(scores),
        "Training": draw_loss_curves(history),
        "Prototypes": draw_prototype_usage(history),
    }
    if sampled_features is not None:
        pictures["Real and sampled features of normals, first run"] = draw_sampled_features(sampled_features)
    parts = [f"<h1>{html.escape(title)}</h1>", _html_table(summary), f"<p>{COVERS}</p>"]
    if without_repeats is not None and len(without_repeats):
        parts.append(f"<p>{html.escape(_left_out(without_repeats))}</p>{_html_table(without_repeats)}")
    parts.append(f"<p>'{UNTRAINED}' is the same model before its first training step.</p>")
    parts += [picture(heading, figure) for heading, figure in pictures.items()]
    parts.append("<h2>Runs</h2>" + run_metrics.round(4).to_html(index=False, border=0))
    return page(title, parts)


def picture(heading: str, figure: Figure) -> str:
    """A figure under its heading, for a page."""
    return f"<h2>{html.escape(heading)}</h2><img alt='{html.escape(heading)}' src='{embedded(figure)}'>"


def page(title: str, parts: list[str]) -> str:
    """An HTML page complete in itself."""
    style = "body{font:15px sans-serif;margin:2em auto;max-width:72em}td,th{padding:.2em .8em;text-align:left}"
    style += "img{max-width:100%}"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{style}</style></head><body>{''.join(parts)}</body></html>"
    )


def _html_table(summary: pd.DataFrame) -> str:
    shown = summary.assign(AUC=plus_minus(summary, "auc"), AP=plus_minus(summary, "ap"))
    return shown.drop(columns=["auc_mean", "auc_std", "ap_mean", "ap_std"]).to_html(index=False, border=0)


def embedded(figure: Figure) -> str:
    """A picture as an address that holds it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


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
