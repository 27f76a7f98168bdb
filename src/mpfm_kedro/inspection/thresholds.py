"""Thresholds with a promise: a false-alarm rate that holds with a stated confidence.

Let x_(1) ≥ … ≥ x_(n) be the scores of n normal items that nothing was fitted to, exchangeable with the normals to come.
The share F_k of normals to come with a score above x_(k) is a random number, as it depends on which n normals were
drawn. For continuous scores F_k ~ Beta(k, n + 1 − k); with ties the share is smaller. Two thresholds follow:

    defective = x_(k), the largest k with P(F_k ≤ rate) ≥ confidence: at most ``rate`` of the normals lie above it.
    good = x_(k'), the smallest k' with P(F_k' ≥ rate) ≥ confidence: at least ``rate`` of them lie at or above it.

Together they are the confidence band of the normals' (1 − rate) quantile q, the threshold one would choose if all
normals to come were known. A score above ``defective`` lies above q, one up to ``good`` does not; between them n
normals cannot tell: the decision is *uncertain*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv

from mpfm_kedro.errors import InputError

GOOD, UNCERTAIN, DEFECTIVE = "good", "uncertain", "defective"
ROUNDING = 1e-12  # of the incomplete beta function

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Promise:
    """Two thresholds and what is promised of them; all values can be stored as JSON.

    Args:
        rate: the false-alarm rate that was asked for.
        confidence: with which the promise holds.
        n_normals: how many normal items it rests on.
        kept: whether ``rate`` can be promised with so few normals.
        rate_promised: ``rate`` or, where it cannot be promised, the least rate that can.
        rate_expected: the false-alarm rate on average over draws of the normals, k / (n + 1).
        defective: a score above it is defective.
        good: a score up to it is good; None where the normals are too few to call any score good.
    """

    rate: float
    confidence: float
    n_normals: int
    kept: bool
    rate_promised: float
    rate_expected: float
    defective: float
    good: float | None


@dataclass(frozen=True)
class MissRate:
    """The share of anomalies that are not called defective, with its Clopper-Pearson interval."""

    rate: float
    low: float
    high: float
    confidence: float
    n_missed: int
    n_anomalies: int


def promise(
    scores: ArrayLike, rate: float, confidence: float, groups: Sequence[object] | NDArray | None = None
) -> Promise:
    """The thresholds of a false-alarm rate.

    Where n is too small for ``rate``, ``defective`` is the largest score, ``kept`` is False and ``rate_promised`` is
    1 − (1 − confidence)^(1/n).

    Args:
        scores: of normals that nothing was fitted to (n,), higher for anomalies.
        rate: share of normal items that may be called defective, between 0 and 1.
        confidence: of the promise, from 0.5 to below 1.
        groups: the item of each score (n,). The promise is about items: an item is called defective if any of its
            pieces is, so its largest score is one observation. By default every score is an item.
    """
    _check(rate, confidence)
    descending = np.sort(item_scores(scores, groups))[::-1]
    n = len(descending)
    k = np.arange(1, n + 1)
    within = betainc(k, n + 1 - k, rate)  # P(F_k ≤ rate), falls with k
    n_safe = int((within >= confidence - ROUNDING).sum())
    n_doubtful = int((within > 1 - confidence + ROUNDING).sum())
    return Promise(
        rate=float(rate),
        confidence=float(confidence),
        n_normals=n,
        kept=n_safe > 0,
        rate_promised=float(rate) if n_safe else least_rate(n, confidence),
        rate_expected=max(1, n_safe) / (n + 1),
        defective=float(descending[max(1, n_safe) - 1]),
        good=float(descending[n_doubtful]) if n_doubtful < n else None,
    )


def least_normals(rate: float, confidence: float) -> int:
    """The least number n of normals that a promise needs: (1 − rate)^n ≤ 1 − confidence."""
    _check(rate, confidence)
    return max(1, math.ceil(math.log1p(-confidence) / math.log1p(-rate) - ROUNDING))


def least_rate(n_normals: int, confidence: float) -> float:
    """The least rate that n normals can promise: 1 − (1 − confidence)^(1/n)."""
    return -math.expm1(math.log1p(-confidence) / n_normals)


def item_scores(scores: ArrayLike, groups: Sequence[object] | NDArray | None = None) -> Floats:
    """The largest score of each item (n_items,)."""
    values = _finite(scores, "scores of normals")
    if groups is None:
        return values
    if len(groups) != len(values):
        raise InputError(f"{len(groups)} groups for {len(values)} scores of normals; there must be one for each")
    items, number = np.unique(np.asarray(groups), return_inverse=True)
    largest = np.full(len(items), -np.inf)
    np.maximum.at(largest, number, values)
    return largest


def decide(scores: ArrayLike, promised: Promise) -> NDArray[np.str_]:
    """Good, uncertain or defective for each score, (n,)."""
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise InputError("A score is not a number: there is no decision about it")
    good = np.zeros(values.shape, dtype=bool) if promised.good is None else values <= promised.good
    return np.where(values > promised.defective, DEFECTIVE, np.where(good, GOOD, UNCERTAIN))


def p_values(scores: ArrayLike, normal_scores: ArrayLike) -> Floats:
    """p = (1 + number of normals with a score ≥ s) / (n + 1) for each score s, (m,).

    For a normal to come P(p ≤ a) ≤ a for every a: small values say that a score is rare among normals. Of pieces, give
    the ``item_scores``.
    """
    normals = np.sort(_finite(normal_scores, "scores of normals"))
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise InputError("A score is not a number: it has no p-value")
    return (1 + len(normals) - np.searchsorted(normals, values, side="left")) / (len(normals) + 1)


def miss_rate(anomaly_scores: ArrayLike, threshold: float, confidence: float) -> MissRate:
    """The share of anomalies with a score up to the threshold, with a two-sided Clopper-Pearson interval.

    With x of n missed, low is the (1 − c)/2 quantile of Beta(x, n − x + 1), high the (1 + c)/2 quantile of
    Beta(x + 1, n − x).
    """
    _check(0.5, confidence)
    values = _finite(anomaly_scores, "scores of anomalies")
    n, missed = len(values), int((values <= threshold).sum())
    low = betaincinv(missed, n - missed + 1, (1 - confidence) / 2) if missed else 0.0
    high = betaincinv(missed + 1, n - missed, (1 + confidence) / 2) if missed < n else 1.0
    return MissRate(missed / n, float(low), float(high), float(confidence), missed, n)


def describe(promised: Promise, missed: MissRate | None = None) -> str:
    """What is promised, in sentences for people."""
    normals = f"{promised.n_normals:,} normal item{'s' * (promised.n_normals != 1)} that nothing was fitted to"
    sentences = []
    if not promised.kept:
        needed = least_normals(promised.rate, promised.confidence)
        sentences.append(f"{_percent(promised.rate)} cannot be promised: {needed:,} unseen normal items are needed.")
    sentences.append(
        f"With {_percent(promised.confidence, 6)} confidence at most {_percent(promised.rate_promised)} of the normal "
        f"items to come are called defective ({_percent(promised.rate_expected)} on average); this rests on {normals}, "
        "and holds while normals look as they did."
    )
    if missed is not None:
        sentences.append(
            f"Missed are {missed.n_missed:,} of {missed.n_anomalies:,} known anomalies: {_percent(missed.rate)}, "
            f"{_percent(missed.confidence, 6)} interval {_percent(missed.low)} to {_percent(missed.high)}."
        )
    return " ".join(sentences)


def _percent(share: float, digits: int = 3) -> str:
    return f"{100 * share:.{digits}g} %"


def _check(rate: float, confidence: float) -> None:
    if not 0 < rate < 1:
        raise InputError(f"The false-alarm rate is {rate}; it must lie between 0 and 1, e.g. 0.01 for 1 %")
    if not 0.5 <= confidence < 1:
        raise InputError(f"The confidence is {confidence}; it must be at least 0.5 and below 1, e.g. 0.95")


def _finite(scores: ArrayLike, name: str) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InputError(f"The {name} have shape {values.shape}; one number for each of at least one is needed")
    if not np.isfinite(values).all():
        raise InputError(f"{int((~np.isfinite(values)).sum())} of {len(values)} {name} are not finite")
    return values
