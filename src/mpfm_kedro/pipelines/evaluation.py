"""Metrics of every trial, and their summary over seeds."""

from typing import Any

import pandas as pd

from mpfm_kedro.evaluation.columns import UNTRAINED
from mpfm_kedro.evaluation.intervals import paired_differences, recall_intervals
from mpfm_kedro.evaluation.measures import (
    as_metrics,
    measure_trials,
    summarise,
    summarise_setting,
    summarise_tested_classes,
    summarise_without_repeats,
)


def evaluate(
    scores: pd.DataFrame, pixel_measures: pd.DataFrame, runs: pd.DataFrame, samples: pd.DataFrame
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """The tables of a setting, and its metrics for other tools."""
    run_metrics = measure_trials(scores, None, pixel_measures)
    summary = summarise_setting(run_metrics, recall_intervals(scores, samples))
    tables = {
        "run_metrics": run_metrics,
        "summary": summary,
        "differences": paired_differences(scores, samples, baseline=UNTRAINED),  # what known anomalies add
        "without_repeats": summarise_without_repeats(scores, runs, samples),
        "tested_classes": summarise_tested_classes(scores, samples),
    }
    return tables, as_metrics(summary)


def evaluate_study(
    scores: pd.DataFrame, pixel_measures: pd.DataFrame, costs: pd.DataFrame, samples: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Metrics of a study by run, and over seeds, with the seconds of each trial."""
    run_metrics = measure_trials(scores, costs, pixel_measures)
    return run_metrics, summarise(run_metrics, recall_intervals(scores, samples))
