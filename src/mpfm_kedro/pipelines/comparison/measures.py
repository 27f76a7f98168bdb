"""AUC and AP of every trial, and their summary by cell.

A cell is a column of the tables: dataset, category, setting, known class and number M of known anomalies.
"""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.pipelines.evaluation.nodes import MEASURES, RUN, measures, spread, summarise, with_means

CELL = ["dataset", "category", "setting", "known_class", "n_anomalies"]
CELL_METHOD = [*CELL, "method"]
SUMMARY = [*CELL_METHOD, *MEASURES, "n_seeds", "seconds"]
TRIAL = ["setting", "run", "method"]
EXPERIMENT = ["dataset", "setting"]


def measure_trials(trial_scores: pd.DataFrame, trial_costs: pd.DataFrame) -> pd.DataFrame:
    """One row a run and method: AUC, AP, sizes of the test set, seconds of fitting and scoring."""
    rows = [describe(part) | measures(part) for _, part in trial_scores.groupby(TRIAL, sort=False)]
    metrics = pd.DataFrame(rows)
    check_complete(metrics)
    return metrics.merge(trial_costs[[*TRIAL, "seconds"]], on=TRIAL, how="left")


def summarise_trials(trial_metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds of every cell and method, and seconds a run.

    Cells with ``mean`` as known class or category are means over these; their ± is that over seeds of the mean.
    """
    parts = []
    for (_, setting), part in trial_metrics.groupby(EXPERIMENT, sort=False):
        seconds = part.groupby(["method", "n_anomalies"])["seconds"].mean().reset_index()
        summary = summarise(part).assign(setting=str(setting))
        parts.append(summary.merge(seconds, on=["method", "n_anomalies"], how="left"))
    return pd.concat(parts, ignore_index=True)[SUMMARY]


def describe(part: pd.DataFrame) -> dict:
    """The run and method of the scores of one trial."""
    return part[[*RUN, "method"]].head(1).to_dict("records")[0]


def trials_and_means(trial_metrics: pd.DataFrame, values: list) -> pd.DataFrame:
    """Rows by trial, and for every seed the means of ``values`` over known classes and categories."""
    parts = trial_metrics.groupby(EXPERIMENT, sort=False)
    return pd.concat(
        [with_means(part, values).assign(setting=str(setting)) for (_, setting), part in parts], ignore_index=True
    )


def over_seeds(trial_metrics: pd.DataFrame, *values: str) -> pd.DataFrame:
    """Mean and standard deviation over seeds of ``values``, by cell and method."""
    groups = trials_and_means(trial_metrics, list(values)).groupby(CELL_METHOD, sort=False)
    statistics = {"mean": "mean", "std": spread}
    named = {f"{value}_{name}": (value, how) for value in values for name, how in statistics.items()}
    return groups.agg(**named, n_seeds=("seed", "nunique")).reset_index()


def check_complete(trial_metrics: pd.DataFrame) -> None:
    """Raise where a method has some classes or categories of a seed only: its mean would be one over others."""
    for (_, setting, n_anomalies), part in trial_metrics.groupby([*EXPERIMENT, "n_anomalies"]):
        wanted = len(part[["category", "known_class"]].drop_duplicates())
        for (method, seed), own in part.groupby(["method", "seed"]):
            if len(own) != wanted:
                raise InputError(
                    f"'{method}' has {len(own)} of {wanted} runs in the {setting} setting with M={n_anomalies}, "
                    f"seed {seed}: a mean over these would not compare"
                )
