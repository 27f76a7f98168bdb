"""AUC-ROC and average precision, by run and over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.io.artefacts import ArtefactFile
from mpfm_kedro.pipelines.ingestion.repeats import content
from mpfm_kedro.pipelines.runs.nodes import records
from mpfm_kedro.pipelines.scoring.nodes import TRAINED

CELL = ["dataset", "category", "method", "known_class", "n_anomalies"]
MEASURES = ["auc_mean", "auc_std", "ap_mean", "ap_std"]
SUMMARY = [*CELL, *MEASURES, "n_seeds"]
RUN_METHOD = ["run", "method"]
RUN = ["run", "dataset", "category", "setting", "known_class", "n_anomalies", "seed"]


def measure_runs(
    scores: pd.DataFrame,
    runs: pd.DataFrame,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
) -> pd.DataFrame:
    """One row a run and method: AUC, AP, sizes of the test set, seconds of fitting."""
    rows = []
    for (run, method), part in scores.groupby(RUN_METHOD, sort=False):
        seconds = initial_models[str(run)].details()["seconds"]
        if method == TRAINED:
            seconds += models[str(run)].details()["seconds"]
        rows.append(
            {
                "run": run,
                "method": method,
                **measures(part),
                "seconds": round(seconds, 2),
            }
        )
    return runs[RUN].merge(pd.DataFrame(rows), on="run")


def summarise_without_repeats(scores: pd.DataFrame, runs: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """The summary without test images that repeat a training image of their run, or an earlier test image.

    ``left_out`` is their mean number a run. No rows where no test image repeats another one.
    """
    shown = content(samples).set_axis(samples["sample_id"])
    repeats = {run["run"]: repeated_tests(run, shown) for run in records(runs)}
    left_out = pd.Series([sample in repeats[run] for run, sample in zip(scores["run"], scores["sample"], strict=True)])
    if not left_out.any():
        return pd.DataFrame(columns=[*SUMMARY, "left_out"])
    kept = scores[~left_out.to_numpy()]
    rows = [{"run": run, "method": method, **measures(part)} for (run, method), part in kept.groupby(RUN_METHOD)]
    metrics = (
        runs[RUN]
        .merge(pd.DataFrame(rows), on="run")
        .assign(left_out=lambda table: [len(repeats[run]) for run in table["run"]])
    )
    of_cells = metrics.groupby(CELL)["left_out"].mean().reset_index()
    summary = summarise(metrics).merge(of_cells, on=CELL, how="left")
    return summary.fillna({"left_out": metrics["left_out"].mean()})


def repeated_tests(run: dict[str, Any], shown: pd.Series) -> set[str]:
    """The tested samples of a run that show what it was trained with, or what was tested before."""
    tested = shown[[*run["test_normals"], *run["test_anomalies"]]]
    learned = shown[[*run["train_normals"], *run["known_anomalies"]]]
    return set(tested.index[tested.isin(set(learned)) | tested.duplicated()])


def measures(part: pd.DataFrame) -> dict[str, float]:
    """AUC and AP, undefined where only normals or only anomalies are left, and the numbers of both."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    anomalies = int((part["label"] == 1).sum())
    sizes = {"n_test_normals": len(part) - anomalies, "n_test_anomalies": anomalies}
    if 0 in sizes.values():
        return {"auc": np.nan, "ap": np.nan, **sizes}
    scored = part["label"], part["score"]
    return {"auc": float(roc_auc_score(*scored)), "ap": float(average_precision_score(*scored)), **sizes}


def summarise(run_metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds of every cell, and of the mean over known classes and categories.

    The ± of a mean over classes is the standard deviation over seeds of that mean. Methods keep their order.
    """
    order = {method: place for place, method in enumerate(run_metrics["method"].unique())}
    groups = with_means(run_metrics, ["auc", "ap"]).groupby(CELL, sort=False)
    summary = groups.agg(
        auc_mean=("auc", "mean"),
        auc_std=("auc", spread),
        ap_mean=("ap", "mean"),
        ap_std=("ap", spread),
        n_seeds=("seed", "nunique"),
    ).reset_index()
    summary["_method"] = summary["method"].map(order)
    by = ["dataset", "category", "n_anomalies", "_method", "known_class"]
    key = summary[by].assign(
        known_class=summary["known_class"].replace("mean", "\uffff"),
        category=summary["category"].replace("mean", "\uffff"),
    )
    return summary.loc[key.sort_values(by).index, SUMMARY].reset_index(drop=True)


def with_means(run_metrics: pd.DataFrame, values: list) -> pd.DataFrame:
    """The rows of one setting, and for every seed the means of ``values`` over known classes and categories."""
    tables = [run_metrics]
    if run_metrics["known_class"].nunique() > 1:
        tables.append(_mean_over(run_metrics, "known_class", values))
    if run_metrics["category"].nunique() > 1:
        tables.append(_mean_over(tables[-1], "category", values))
    return pd.concat(tables)


def as_metrics(summary: pd.DataFrame) -> dict[str, Any]:
    """AUC and AP of the summary by method, then category and known class where there are some, then M."""
    metrics: dict[str, Any] = {}
    for row in summary.to_dict("records"):
        cell = metrics.setdefault(row["method"], {})
        for name in filter(None, [row["category"], row["known_class"]]):
            cell = cell.setdefault(name, {})
        values = {name: row[name] for name in MEASURES if not np.isnan(row[name])}
        cell[f"M{row['n_anomalies']}"] = values
    return metrics


def _mean_over(metrics: pd.DataFrame, column: str, values: list) -> pd.DataFrame:
    rest = [name for name in [*CELL, "seed"] if name != column]
    return metrics.groupby(rest, sort=False)[values].mean().reset_index().assign(**{column: "mean"})


def spread(values: pd.Series) -> float:
    """Standard deviation over seeds (population), zero for one seed."""
    return float(values.std(ddof=0))
