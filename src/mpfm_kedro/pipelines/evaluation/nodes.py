"""AUC-ROC and average precision, by run and over seeds."""

from __future__ import annotations

import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score

from mpfm_kedro.io.artefacts import ArtefactFile
from mpfm_kedro.pipelines.scoring.nodes import TRAINED, UNTRAINED

CELL = ["dataset", "category", "method", "known_class", "n_anomalies"]
SUMMARY = [*CELL, "auc_mean", "auc_std", "ap_mean", "ap_std", "n_seeds"]


def measure_runs(
    scores: pd.DataFrame,
    runs: pd.DataFrame,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
) -> pd.DataFrame:
    """One row a run and method: AUC, AP, sizes of the test set, seconds of fitting."""
    rows = []
    for (run, method), part in scores.groupby(["run", "method"], sort=False):
        seconds = initial_models[str(run)].details()["seconds"]
        if method == TRAINED:
            seconds += models[str(run)].details()["seconds"]
        rows.append(
            {
                "run": run,
                "method": method,
                "auc": roc_auc_score(part["label"], part["score"]),
                "ap": average_precision_score(part["label"], part["score"]),
                "n_test_normals": int((part["label"] == 0).sum()),
                "n_test_anomalies": int((part["label"] == 1).sum()),
                "seconds": round(seconds, 2),
            }
        )
    columns = ["run", "dataset", "category", "setting", "known_class", "n_anomalies", "seed"]
    return runs[columns].merge(pd.DataFrame(rows), on="run")


def summarise(run_metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds of every cell, and of the mean over known classes and categories.

    The ± of a mean over classes is the standard deviation over seeds of that mean.
    """
    cells = run_metrics.copy()
    tables = [cells]
    if cells["known_class"].nunique() > 1:
        tables.append(_mean_over(cells, "known_class"))
    if cells["category"].nunique() > 1:
        of_classes = tables[-1] if len(tables) > 1 else cells
        tables.append(_mean_over(of_classes, "category"))
    order = {TRAINED: 0, UNTRAINED: 1}
    groups = pd.concat(tables).groupby(CELL, sort=False)
    summary = groups.agg(
        auc_mean=("auc", "mean"),
        auc_std=("auc", _spread),
        ap_mean=("ap", "mean"),
        ap_std=("ap", _spread),
        n_seeds=("seed", "nunique"),
    ).reset_index()
    summary["_method"] = summary["method"].map(order)
    by = ["dataset", "category", "n_anomalies", "_method", "known_class"]
    key = summary[by].assign(
        known_class=summary["known_class"].replace("mean", "\uffff"),
        category=summary["category"].replace("mean", "\uffff"),
    )
    return summary.loc[key.sort_values(by).index, SUMMARY].reset_index(drop=True)


def _mean_over(metrics: pd.DataFrame, column: str) -> pd.DataFrame:
    rest = [name for name in [*CELL, "seed"] if name != column]
    return metrics.groupby(rest, sort=False)[["auc", "ap"]].mean().reset_index().assign(**{column: "mean"})


def _spread(values: pd.Series) -> float:
    """Standard deviation over seeds (population), zero for one seed."""
    return float(values.std(ddof=0))
