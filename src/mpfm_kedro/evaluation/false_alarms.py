"""Beyond AUC: how far anomalies are separated from normals, and how false alarms are spread over modes."""

import numpy as np
import pandas as pd

from mpfm_kedro.evaluation.columns import RUN, TRAINED, TRIAL
from mpfm_kedro.evaluation.measures import describe, over_seeds

MAD_TO_STD = 1.4826  # the standard deviation of a Gaussian in units of its median absolute deviation


def separation(scores: pd.DataFrame) -> pd.DataFrame:
    """How far anomalies lie above normals, by cell and method.

    margin = (median of anomalies - median of normals) / (1.4826 · MAD of normals), mean and standard deviation over
    seeds; undefined where half of the normals share one score.
    """
    rows = []
    for _, part in scores.groupby(TRIAL, sort=False):
        normals, anomalies = (part["score"][part["label"] == label].to_numpy() for label in (0, 1))
        middle = np.median(normals)
        deviation = MAD_TO_STD * np.median(np.abs(normals - middle))
        margin = (np.median(anomalies) - middle) / deviation if deviation > 0 else np.nan
        rows.append(describe(part) | {"margin": margin})
    return over_seeds(pd.DataFrame(rows), "margin")


def false_alarms_by_mode(scores: pd.DataFrame, rate: float = 0.05) -> pd.DataFrame:
    """Share of the test normals of each mode above a threshold, by run and method.

    The threshold lets at most ``rate`` of all test normals of the run and method pass as anomalies. The mode of an
    image is that of MPFM in the same run, so that all methods are measured on the same groups; runs without MPFM are
    skipped.
    """
    normals = scores[scores["label"] == 0]
    modes = normals[normals["method"] == TRAINED][["setting", "run", "sample", "mode"]]
    grouped = normals.drop(columns="mode").merge(modes, on=["setting", "run", "sample"])
    rows = []
    for _, part in grouped.groupby(TRIAL, sort=False):
        alarm = part["score"] > np.quantile(part["score"], 1 - rate, method="higher")
        for mode, own in alarm.groupby(part["mode"]):
            rows.append(describe(part) | {"mode": mode, "n_normals": len(own), "rate": float(own.mean())})
    return pd.DataFrame(rows, columns=[*RUN, "method", "mode", "n_normals", "rate"])


def uneven_false_alarms(false_alarms: pd.DataFrame) -> pd.DataFrame:
    """How unevenly the false alarms are spread over modes, by cell and method.

    unevenness = Σ_k n_k |rate_k - rate| / Σ_k n_k over the modes k of a run, mean and standard deviation over seeds;
    ``excess`` is the unevenness minus that expected of alarms at random.
    """
    rows = []
    for _, part in false_alarms.groupby(TRIAL, sort=False):
        sizes = part["n_normals"].to_numpy()
        overall = np.average(part["rate"], weights=sizes)
        unevenness = float(np.average(np.abs(part["rate"] - overall), weights=sizes))
        excess = unevenness - chance_unevenness(sizes, round(overall * sizes.sum()))
        rows.append(describe(part) | {"unevenness": unevenness, "excess": excess})
    return over_seeds(pd.DataFrame(rows), "unevenness", "excess")


def chance_unevenness(sizes: np.ndarray, n_alarms: int) -> float:
    """Expected unevenness of ``n_alarms`` that are drawn at random from all normals, whatever their mode."""
    from scipy.stats import hypergeom  # slow to import

    total, counts = int(sizes.sum()), np.arange(n_alarms + 1)
    away = [np.abs(counts - n_alarms * size / total) @ hypergeom.pmf(counts, total, n_alarms, size) for size in sizes]
    return float(sum(away) / total)
