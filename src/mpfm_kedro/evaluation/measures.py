"""AUC-ROC and average precision of every trial, and their summary over seeds.

Settings and studies take the same way: scores and costs → metrics by trial → summary by cell and method. Where there
are masks, the measures of pixels are columns behind the others.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import (
    AS_PRINTED,
    AT_STEP_0,
    CELL_METHOD,
    COSTS,
    EXPERIMENT,
    PIXEL_MEASURES,
    RECALLS,
    RUN,
    TRAINED,
    TRIAL,
    UNTRAINED,
)
from mpfm_kedro.sources.repeats import content

MEASURES = ["auc_mean", "auc_std", "ap_mean", "ap_std"]
MORE_MEASURES = [*PIXEL_MEASURES, *RECALLS]
MORE_SUMMARY = [f"{name}_{kind}" for name in MORE_MEASURES for kind in ("mean", "std", "low", "high")]  # come last
SUMMARY = [*CELL_METHOD, *MEASURES, "n_seeds", "seconds"]
SETTING_SUMMARY = ["dataset", "category", "method", "known_class", "n_anomalies", *MEASURES, "n_seeds"]
TESTED = [*CELL_METHOD, "tested_class", "n_test_anomalies_mean", "n_seeds", "auc_mean", "auc_std"]
TESTED += [f"{name}_{kind}" for name in RECALLS for kind in ("mean", "std")]
WITHOUT_REPEATS = [*CELL_METHOD, *MEASURES, "n_seeds", "excluded"]
SHORT_NAMES = {TRAINED: "", AT_STEP_0: "_step_0", UNTRAINED: "_unsupervised", AS_PRINTED: "_as_published"}
LAST = "\uffff"  # sorts after every name


def measure_trials(
    scores: pd.DataFrame, costs: pd.DataFrame | None = None, pixels: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row per run and method: AUC, AP, sizes of the test set, recall, seconds of fitting and scoring; pixels."""
    metrics = pd.DataFrame([describe(part) | measures(part) for _, part in scores.groupby(TRIAL, sort=False)])
    check_complete(metrics)
    if costs is not None:
        metrics = metrics.merge(costs[COSTS], on=TRIAL, how="left")
    return metrics if pixels is None or pixels.empty else metrics.merge(pixels, on=TRIAL, how="left")


def describe(part: pd.DataFrame) -> dict[str, Any]:
    """The run and method of the scores of one trial."""
    (row,) = part[[*RUN, "method"]].head(1).to_dict("records")
    return {str(name): value for name, value in row.items()}


def measures(part: pd.DataFrame) -> dict[str, float]:
    """AUC, AP and recall, undefined where only normals or only anomalies remain, and the numbers of both."""
    from sklearn.metrics import average_precision_score, roc_auc_score  # slow to import

    anomalous = part["label"] == 1
    normals, anomalies = (part["score"][chosen].to_numpy() for chosen in (~anomalous, anomalous))
    sizes = {"n_test_normals": len(normals), "n_test_anomalies": len(anomalies)}
    if 0 in sizes.values():
        return {"auc": np.nan, "ap": np.nan, **sizes, **dict.fromkeys(RECALLS, np.nan)}
    scored = part["label"], part["score"]
    recalls = {name: recall_at(normals, anomalies, rate) for name, rate in RECALLS.items()}
    return {"auc": float(roc_auc_score(*scored)), "ap": float(average_precision_score(*scored)), **sizes, **recalls}


def recall_at(normals: NDArray, anomalies: NDArray, rate: float) -> float:
    """Share of the tested anomalies above the threshold that at most the share ``rate`` of the tested normals exceeds.

    The threshold is measured on the test normals themselves. It says what is found where false alarms are rare, and
    not what a threshold finds that was set on other normals. Undefined with fewer than 1 / rate normals, none of which
    may exceed it: their maximum is the threshold of another rate.
    """
    allowed = int(rate * len(normals) + 1e-9)
    return float((anomalies > np.sort(normals)[-1 - allowed]).mean()) if allowed else np.nan


def check_complete(run_metrics: pd.DataFrame) -> None:
    """Raise where a method lacks some classes or categories of a seed: its mean would be one over others."""
    for (_, setting, n_anomalies), part in run_metrics.groupby([*EXPERIMENT, "n_anomalies"]):
        wanted = len(part[["category", "known_class"]].drop_duplicates())
        for (method, seed), own in part.groupby(["method", "seed"]):
            if len(own) != wanted:
                raise InputError(
                    f"'{method}' has {len(own)} of {wanted} runs in the {setting} setting with M={n_anomalies}, "
                    f"seed {seed}: a mean over these would not compare"
                )


def summarise(run_metrics: pd.DataFrame, intervals: pd.DataFrame | None = None) -> pd.DataFrame:
    """Mean and standard deviation over seeds of every cell and method, seconds per run, intervals of the recalls.

    Cells with ``mean`` as known class or category are means over these; their ± is the standard deviation over seeds
    of that mean. Methods keep their order.
    """
    summary = over_seeds(run_metrics, *_present(["auc", "ap", *MORE_MEASURES], run_metrics))
    if "seconds" in run_metrics:
        by = [*EXPERIMENT, "method", "n_anomalies"]
        summary = summary.merge(run_metrics.groupby(by)["seconds"].mean().reset_index(), on=by, how="left")
    if intervals is not None:
        summary = summary.merge(intervals, on=CELL_METHOD, how="left")
    return summary.reindex(columns=SUMMARY + _present(MORE_SUMMARY, summary))


def summarise_setting(run_metrics: pd.DataFrame, intervals: pd.DataFrame | None = None) -> pd.DataFrame:
    """The summary of one setting in the columns of its ``summary.csv``."""
    summary = summarise(run_metrics, intervals)
    return summary[SETTING_SUMMARY + _present(MORE_SUMMARY, summary)]


def summarise_tested_classes(scores: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """AUC and recall on the anomalies of every tested class alone, against all tested normals, by cell and method.

    In the hard setting ``known_class`` is the class that MPFM learned from, and ``tested_class`` never is that class;
    with ``mean`` as known class it is the mean over all that it was tested with.
    """
    tested = scores["sample"].map(samples.set_index("sample_id")["defect_class"]).where(scores["label"] == 1)
    tables = []
    for name in sorted(tested.dropna().unique()):
        trials = scores[tested.isna() | (tested == name)].groupby(TRIAL, sort=False)
        measured = pd.DataFrame([describe(part) | measures(part) for _, part in trials]).dropna(subset="auc")
        tables.append(over_seeds(measured, "auc", *RECALLS, "n_test_anomalies").assign(tested_class=name))
    return pd.concat(tables)[TESTED] if tables else pd.DataFrame(columns=TESTED)


def summarise_without_repeats(scores: pd.DataFrame, runs: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """The summary without test images that repeat a training image of their run, or an earlier test image.

    ``excluded`` is their mean number per run. No rows where no test image repeats another one.
    """
    shown = content(samples).set_axis(samples["sample_id"])
    repeats = {(run["setting"], run["run"]): repeated_tests(run, shown) for run in runs.to_dict("records")}
    tested = zip(scores["setting"], scores["run"], scores["sample"], strict=True)
    scores = scores.assign(excluded=[sample in repeats[setting, run] for setting, run, sample in tested])
    if not scores["excluded"].any():
        return pd.DataFrame(columns=WITHOUT_REPEATS)
    rows = [
        describe(part) | measures(part[~part["excluded"]]) | {"excluded": part["excluded"].sum()}
        for _, part in scores.groupby(TRIAL, sort=False)
    ]
    summary = over_seeds(pd.DataFrame(rows), "auc", "ap", "excluded")
    return summary.rename(columns={"excluded_mean": "excluded"})[WITHOUT_REPEATS]


def repeated_tests(run: dict[Any, Any], shown: pd.Series) -> set[str]:
    """The tested samples of a run that show what it was trained with, or what was tested before."""
    tested = shown[[*run["test_normals"], *run["test_anomalies"]]]
    learned = shown[[*run["train_normals"], *run["known_anomalies"]]]
    return set(tested.index[tested.isin(set(learned)) | tested.duplicated()])


def as_metrics(summary: pd.DataFrame) -> dict[str, float]:
    """The measures of a setting as one flat object of numbers, for DVC and MLflow: ``auc_M10``, ``auc_M10_step_0``.

    They are means over seeds, and over categories and known classes where there are several. Undefined ones are absent.
    """
    names = [name for name in ("auc", "ap", *MORE_MEASURES) if f"{name}_mean" in summary]
    return {
        f"{name}_M{row['n_anomalies']}{SHORT_NAMES.get(row['method'], '_' + row['method'])}": row[f"{name}_mean"]
        for row in overall(summary).to_dict("records")
        for name in names
        if not np.isnan(row[f"{name}_mean"])
    }


def overall(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the means over categories and over known classes; all rows where there is no such mean."""
    for name in ("category", "known_class"):
        if (table[name] == "mean").any():
            table = table[table[name] == "mean"]
    return table


def over_seeds(run_metrics: pd.DataFrame, *values: str) -> pd.DataFrame:
    """Mean and (population) standard deviation over seeds of ``values``, by cell and method, in the order of tables."""
    groups = with_means(run_metrics, list(values), skipna=False).groupby(CELL_METHOD, sort=False)
    means, deviations = groups[list(values)].mean(), groups[list(values)].std(ddof=0)
    summary = means.add_suffix("_mean").join(deviations.add_suffix("_std")).assign(n_seeds=groups["seed"].nunique())
    return _in_order(summary.reset_index(), run_metrics["method"].unique())


def with_means(run_metrics: pd.DataFrame, values: list[Any], skipna: bool = True) -> pd.DataFrame:
    """Rows by trial, and for every seed the means of ``values`` over known classes and categories.

    Without ``skipna``, a mean is undefined where one of its values is: that of the others would not compare.
    """
    tables = []
    for _, part in run_metrics.groupby(EXPERIMENT, sort=False):
        tables.append(part)
        for column in ("known_class", "category"):
            if part[column].nunique() > 1:
                keys = [name for name in [*CELL_METHOD, "seed"] if name != column]
                means = tables[-1].groupby(keys, sort=False)[values].mean(skipna=skipna).reset_index()
                tables.append(means.assign(**{column: "mean"}))
    return pd.concat(tables, ignore_index=True)


def _present(names: list[str], table: pd.DataFrame) -> list[str]:
    """Those of the columns that a table has."""
    return [name for name in names if name in table]


def _in_order(summary: pd.DataFrame, methods: np.ndarray) -> pd.DataFrame:
    """By dataset, setting, category, M, method as given and known class; means come last."""
    key = summary[CELL_METHOD].replace({"known_class": {"mean": LAST}, "category": {"mean": LAST}})
    key["method"] = key["method"].map({method: rank for rank, method in enumerate(methods)})
    by = [*EXPERIMENT, "category", "n_anomalies", "method", "known_class"]
    return summary.loc[key.sort_values(by).index].reset_index(drop=True)
