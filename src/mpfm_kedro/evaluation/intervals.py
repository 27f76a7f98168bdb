"""Confidence intervals of the difference between two methods, over seeds and test samples together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm, t

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD, RUN, TRAINED, TRIAL, UNTRAINED
from mpfm_kedro.evaluation.measures import with_means

DIFFERENCES = [*CELL_METHOD, "difference", "low", "high", "verdict"]
LEVEL = 0.95


def paired_differences(
    scores: pd.DataFrame,
    samples: pd.DataFrame | None = None,
    baseline: str = TRAINED,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean AUC of every other method minus that of ``baseline``, with a 95 % interval, by cell.

    Two sources of variance add up. Test samples: each bootstrap draw weights the items that
    ``samples`` names (without it, every sample is its own item). An item has one weight for all its pieces, normal and
    anomalous, and all methods, seeds and known classes see the same draw. Seeds: the standard error of the mean over
    them, by Student's t, as a few seeds tell little of their own spread. ``verdict`` is better or worse than the
    baseline where the interval excludes zero; one seed gives no verdict.

    Args:
        scores: one row per trial and test sample.
        samples: the sample table, for the items.
        baseline: the method to compare with.
        draws: number of bootstrap draws.
        seed: of the draws.
    """
    items = None if samples is None else samples.set_index("sample_id")["item"]
    drawn = _drawn_aucs(scores, items, draws, seed)
    values = list(range(draws + 1))
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


def gain_of_known_anomalies(scores: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """What known anomalies add to the AUC of MPFM: that of MPFM minus that of MPFM without any, by cell."""
    return paired_differences(scores, samples, baseline=UNTRAINED)


def weighted_aucs(
    normals: np.ndarray, anomalies: np.ndarray, normal_weights: np.ndarray, anomaly_weights: np.ndarray
) -> np.ndarray:
    """AUC = Σ w_n w_a [s_a > s_n, ½ if equal] / Σ w_n w_a for every draw, (D,).

    Summed over sorted normals, which for D draws takes D·(N + A) steps and not D·N·A.

    Args:
        normals: scores (N,).
        anomalies: scores (A,).
        normal_weights: (N, D).
        anomaly_weights: (A, D).
    """
    order = np.argsort(normals)
    below = np.zeros((len(normals) + 1, normal_weights.shape[1]), dtype=normal_weights.dtype)
    np.cumsum(normal_weights[order], axis=0, out=below[1:])
    first, last = (np.searchsorted(normals[order], anomalies, side) for side in ("left", "right"))
    beaten = np.einsum("ad,ad->d", below[first] + below[last], anomaly_weights, dtype=np.float64)
    pairs = below[-1].astype(np.float64) * anomaly_weights.sum(axis=0)
    with np.errstate(invalid="ignore"):  # a draw may exclude all samples of a small class
        return beaten / 2 / pairs


def _drawn_aucs(scores: pd.DataFrame, items: pd.Series | None, draws: int, seed: int) -> pd.DataFrame:
    """One row per trial: the AUC (column 0) and those of the draws (columns 1 to ``draws``)."""
    described, aucs = [], []
    experiments = scores.groupby(["dataset", "category", "setting"], sort=False)
    for place, (_, experiment) in enumerate(experiments):
        described.append(experiment.drop_duplicates(TRIAL)[[*RUN, "method"]])
        item = experiment["sample"] if items is None else experiment["sample"].map(items)
        number, names = pd.factorize(item, sort=True)
        score, normal = experiment["score"].to_numpy(), (experiment["label"] == 0).to_numpy()
        with_normals = np.isin(np.arange(len(names)), number[normal])
        weights = _item_weights(with_normals, draws, np.random.default_rng([seed, place]))
        trial = experiment.groupby(TRIAL, sort=False).ngroup().to_numpy()
        for current in range(trial.max() + 1):
            normals, anomalies = (np.flatnonzero((trial == current) & kind) for kind in (normal, ~normal))
            drawn = weights[number[normals]], weights[number[anomalies]]
            aucs.append(weighted_aucs(score[normals], score[anomalies], *drawn))
    return pd.concat([pd.concat(described, ignore_index=True), pd.DataFrame(np.stack(aucs))], axis=1)


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
    n, mean = len(difference), float(difference[:, 0].mean())
    tail = (1 + LEVEL) / 2
    of_samples = norm.ppf(tail) * np.nanstd(difference[:, 1:].mean(axis=0))
    of_seeds = t.ppf(tail, n - 1) * difference[:, 0].std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    half = float(np.hypot(of_samples, of_seeds))
    verdict = "undecided" if n < 2 or abs(mean) <= half else "better" if mean > 0 else "worse"
    return {"difference": mean, "low": mean - half, "high": mean + half, "verdict": verdict}
