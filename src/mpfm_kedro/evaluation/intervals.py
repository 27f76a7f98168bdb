"""Confidence intervals of recalls and of differences between two methods, over seeds and test samples together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD, RECALLS, RUN, TRAINED, TRIAL
from mpfm_kedro.evaluation.measures import with_means

DIFFERENCES = [*CELL_METHOD, "difference", "low", "high", "verdict"]
ENDS = ("low", "high")
LEVEL = 0.95


def paired_differences(
    scores: pd.DataFrame,
    samples: pd.DataFrame | None = None,
    baseline: str = TRAINED,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean AUC of every other method minus that of ``baseline``, with a 95 % interval, by cell.

    Two sources of variance add up. Test samples: each bootstrap draw weights the items that ``samples`` names (without
    it, every sample is its own item). An item has one weight for all its pieces, normal and anomalous, and all methods,
    seeds and known classes see the same draw. Seeds: the standard error of the mean over them, by Student's t, as a few
    seeds tell little of their own spread. ``verdict`` is better or worse than the baseline where the interval excludes
    zero; one seed gives no verdict.
    """
    drawn, values = _draw(scores, samples, weighted_aucs, draws, seed), list(range(draws + 1))
    rows: list[dict[Any, Any]] = []
    for cell, part in with_means(drawn, values).groupby(CELL, sort=False):
        aucs = {method: own.set_index("seed")[values] for method, own in part.groupby("method", sort=False)}
        reference = aucs.pop(baseline, None)
        if reference is None:
            continue
        for method, own in aucs.items():
            difference = (own - reference).dropna(how="all").to_numpy()
            if len(difference):
                rows.append(dict(zip(CELL, cell, strict=True)) | {"method": method} | _interval(difference))
    return pd.DataFrame(rows, columns=DIFFERENCES)


def recall_intervals(
    scores: pd.DataFrame, samples: pd.DataFrame | None = None, draws: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """95 % intervals of the mean recalls, over seeds and test samples as ``paired_differences``, by cell and method.

    None is narrower than Wilson's for the anomalies that one run tests: where all are found, they are in every draw.
    """
    rows: dict[Any, dict[str, Any]] = {}
    values = list(range(draws + 1))
    for name, rate in RECALLS.items():
        drawn = _draw(scores, samples, partial(weighted_recalls, rate=rate), draws, seed)
        for cell, part in with_means(drawn, [*values, "tested"], skipna=False).groupby(CELL_METHOD, sort=False):
            row, defined = rows.setdefault(cell, dict(zip(CELL_METHOD, cell, strict=True))), part.dropna(subset=0)
            if len(defined):
                share, half = _mean_and_half_width(defined[values].to_numpy())
                low, high = _wilson(share, defined["tested"].mean())
                row[f"{name}_low"] = max(0.0, min(low, share - half))
                row[f"{name}_high"] = min(1.0, max(high, share + half))
    return pd.DataFrame(rows.values(), columns=[*CELL_METHOD, *(f"{name}_{end}" for name in RECALLS for end in ENDS)])


def weighted_aucs(
    normals: np.ndarray, anomalies: np.ndarray, normal_weights: np.ndarray, anomaly_weights: np.ndarray
) -> np.ndarray:
    """AUC = Σ w_n w_a [s_a > s_n, ½ if equal] / Σ w_n w_a for every draw, (D,).

    Scores are (N,) and (A,), their weights (N, D) and (A, D). Summed over sorted normals, which for D draws takes
    D·(N + A) steps and not D·N·A.
    """
    order = np.argsort(normals)
    below = np.zeros((len(normals) + 1, normal_weights.shape[1]), dtype=normal_weights.dtype)
    np.cumsum(normal_weights[order], axis=0, out=below[1:])
    first, last = (np.searchsorted(normals[order], anomalies, side) for side in ("left", "right"))
    beaten = np.einsum("ad,ad->d", below[first] + below[last], anomaly_weights, dtype=np.float64)
    pairs = below[-1].astype(np.float64) * anomaly_weights.sum(axis=0)
    with np.errstate(invalid="ignore"):  # a draw may exclude all samples of a small class
        return beaten / 2 / pairs


def weighted_recalls(
    normals: np.ndarray, anomalies: np.ndarray, normal_weights: np.ndarray, anomaly_weights: np.ndarray, rate: float
) -> np.ndarray:
    """``recall_at`` of weighted samples for every draw, (D,); shapes as in ``weighted_aucs``."""
    if rate * len(normals) < 1:
        return np.full(normal_weights.shape[1], np.nan)
    order, rank = np.argsort(-normals), np.argsort(-anomalies)
    alarms = np.cumsum(normal_weights[order], axis=0, dtype=np.float64)
    allowed = (alarms <= rate * alarms[-1] + 1e-9).sum(axis=0)
    found = np.searchsorted(-anomalies[rank], -normals[order][allowed])
    hits = np.pad(np.cumsum(anomaly_weights[rank], axis=0, dtype=np.float64), ((1, 0), (0, 0)))
    with np.errstate(invalid="ignore"):
        return hits[found, np.arange(len(found))] / hits[-1]


def _draw(
    scores: pd.DataFrame, samples: pd.DataFrame | None, measure: Callable[..., np.ndarray], draws: int, seed: int
) -> pd.DataFrame:
    """One row per trial: the measure (column 0), those of the draws (1 to ``draws``), how many anomalies are tested."""
    groups = None if samples is None else samples.set_index("sample_id")["item"]
    tables = []
    experiments = scores.groupby(["dataset", "category", "setting"], sort=False)
    for position, (_, experiment) in enumerate(experiments):
        item = experiment["sample"] if groups is None else experiment["sample"].map(groups)
        number, items = pd.factorize(item, sort=True)
        score, normal = experiment["score"].to_numpy(), (experiment["label"] == 0).to_numpy()
        with_normals = np.isin(np.arange(len(items)), number[normal])
        weights = _item_weights(with_normals, draws, np.random.default_rng([seed, position]))
        trial = experiment.groupby(TRIAL, sort=False).ngroup().to_numpy()
        tested = [[np.flatnonzero((trial == i) & kind) for kind in (normal, ~normal)] for i in range(trial.max() + 1)]
        drawn = [measure(*(score[rows] for rows in both), *(weights[number[rows]] for rows in both)) for both in tested]
        described = experiment.drop_duplicates(TRIAL)[[*RUN, "method"]].reset_index(drop=True)
        described["tested"] = [len(anomalies) for _, anomalies in tested]
        tables.append(pd.concat([described, pd.DataFrame(np.stack(drawn))], axis=1))
    return pd.concat(tables, ignore_index=True)


def _item_weights(with_normals: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """One weight per item and draw, (items, 1 + draws); the first column is the measured one, all ones.

    Items with normal pieces are one stratum, items with anomalous pieces only another, each drawn with its own size.
    """
    weights = np.ones((len(with_normals), 1 + draws), dtype=np.float32)
    for chosen in (with_normals, ~with_normals):
        if n := int(chosen.sum()):
            weights[chosen, 1:] = rng.multinomial(n, np.full(n, 1 / n), draws).T
    return weights


def _interval(difference: np.ndarray) -> dict[str, Any]:
    """Mean, interval and verdict of differences (seeds, 1 + draws), of which the first column is the measured one."""
    mean, half = _mean_and_half_width(difference)
    verdict = "undecided" if len(difference) < 2 or abs(mean) <= half else "better" if mean > 0 else "worse"
    return {"difference": mean, "low": mean - half, "high": mean + half, "verdict": verdict}


def _mean_and_half_width(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds of the measured column, and half of its interval, of values (seeds, 1 + draws)."""
    from scipy.stats import norm, t  # slow to import

    n, tail = len(values), (1 + LEVEL) / 2
    of_samples = norm.ppf(tail) * np.nanstd(values[:, 1:].mean(axis=0))
    of_seeds = t.ppf(tail, n - 1) * values[:, 0].std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    return float(values[:, 0].mean()), float(np.hypot(of_samples, of_seeds))


def _wilson(share: float, n: float) -> tuple[float, float]:
    from scipy.stats import norm  # slow to import

    z = norm.ppf((1 + LEVEL) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return centre - half, centre + half
