"""Thresholds with a guaranteed false-alarm rate, which holds with a stated confidence.

Let x_(1) ≥ … ≥ x_(n) be the scores of n held-out normal items, exchangeable with future normals. The share F_k of
future normals with a score above x_(k) is random, as it depends on which n normals were drawn. For continuous scores
F_k ~ Beta(k, n + 1 − k); with ties the share is smaller. Two thresholds follow:

    defective = x_(k), the largest k with P(F_k ≤ rate) ≥ confidence: at most ``rate`` of the normals lie above it.
    good = x_(k'), the smallest k' with P(F_k' ≥ rate) ≥ confidence: at least ``rate`` of them lie at or above it.

Together they are the confidence band of the normals' (1 − rate) quantile q, the threshold one would choose if all
future normals were known. A score above ``defective`` lies above q, one up to ``good`` does not; between them n
normals are too few to decide: the decision is *uncertain*.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from mpfm_kedro.errors import InputError

GOOD, UNCERTAIN, DEFECTIVE = "good", "uncertain", "defective"
ROUNDING = 1e-12  # of the incomplete beta function

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Threshold:
    """The lower and the upper threshold of a false-alarm rate; all values can be stored as JSON."""

    rate: float  # the requested false-alarm rate
    confidence: float  # probability that the guarantee holds
    n_normals: int  # held-out normal items that it rests on
    is_achievable: bool  # whether so few normals can guarantee ``rate``
    rate_guaranteed: float  # ``rate`` or, where it is not achievable, the lowest rate that is
    rate_expected: float  # the false-alarm rate on average over draws of the normals, k / (n + 1)
    defective: float  # a score above it is defective
    good: float | None  # a score up to it is good; None where the normals are too few to call any score good
    alike: float = 1.0  # an image with a higher likeness to a known defect is not good


@dataclass(frozen=True)
class MissRate:
    """The share of anomalies that are not called defective, with its Clopper-Pearson interval."""

    rate: float
    low: float
    high: float
    confidence: float
    n_missed: int
    n_anomalies: int


def choose_threshold(scores: ArrayLike, rate: float, confidence: float) -> Threshold:
    """The thresholds of a false-alarm rate, from the scores of held-out normal items (n,).

    Where n is too small for ``rate``, ``defective`` is the largest score, and ``rate_guaranteed`` is
    1 − (1 − confidence)^(1/n).
    """
    _check(rate, confidence)
    descending = np.sort(_finite(scores, "scores of normals"))[::-1]
    n = len(descending)
    k = np.arange(1, n + 1)
    within = betainc(k, n + 1 - k, rate)  # P(F_k ≤ rate), falls with k
    n_safe = int((within >= confidence - ROUNDING).sum())
    n_doubtful = int((within > 1 - confidence + ROUNDING).sum())
    return Threshold(
        rate=float(rate),
        confidence=float(confidence),
        n_normals=n,
        is_achievable=n_safe > 0,
        rate_guaranteed=float(rate) if n_safe else least_rate(n, confidence),
        rate_expected=max(1, n_safe) / (n + 1),
        defective=float(descending[max(1, n_safe) - 1]),
        good=float(descending[n_doubtful]) if n_doubtful < n else None,
    )


def least_normals(rate: float, confidence: float) -> int:
    """The least number n of normals that can guarantee a rate: (1 − rate)^n ≤ 1 − confidence."""
    _check(rate, confidence)
    return max(1, math.ceil(math.log1p(-confidence) / math.log1p(-rate) - ROUNDING))


def least_rate(n_normals: int, confidence: float) -> float:
    """The lowest rate that n normals can guarantee: 1 − (1 − confidence)^(1/n)."""
    return -math.expm1(math.log1p(-confidence) / n_normals)


def item_scores(scores: ArrayLike, items: ArrayLike) -> Floats:
    """The largest score of each item (n_items,): an item is called defective if any of its images (n,) is."""
    values = _finite(scores, "scores of items")
    return np.asarray(pd.Series(values).groupby(np.asarray(items)).max(), dtype=np.float64)


def decide(scores: ArrayLike, threshold: Threshold, likeness: ArrayLike = 0.0) -> NDArray[np.str_]:
    """Good, uncertain or defective for each score, (n,), and likeness to a known defect."""
    values = _not_nan(scores, "there is no decision about it")
    good = np.zeros(values.shape, dtype=bool) if threshold.good is None else values <= threshold.good
    good &= np.asarray(likeness) <= threshold.alike
    return np.where(values > threshold.defective, DEFECTIVE, np.where(good, GOOD, UNCERTAIN))


def p_values(scores: ArrayLike, normal_scores: ArrayLike) -> Floats:
    """p = (1 + number of normals with a score ≥ s) / (n + 1) for each score s, (m,).

    For future normals P(p ≤ a) ≤ a for every a: small values say that a score is rare among normals. Where several
    images show one item, give the ``item_scores``.
    """
    normals = np.sort(_finite(normal_scores, "scores of normals"))
    values = _not_nan(scores, "it has no p-value")
    return (1 + len(normals) - np.searchsorted(normals, values, side="left")) / (len(normals) + 1)


def miss_rate(anomaly_scores: ArrayLike, threshold: float, confidence: float) -> MissRate:
    """The share of anomalies with a score up to the threshold, with a two-sided Clopper-Pearson interval."""
    from scipy.stats import binomtest  # slow to import

    _check(0.5, confidence)
    values = _finite(anomaly_scores, "scores of anomalies")
    n, missed = len(values), int((values <= threshold).sum())
    low, high = binomtest(missed, n).proportion_ci(confidence, method="exact")
    return MissRate(missed / n, float(low), float(high), float(confidence), missed, n)


def describe_guarantee(threshold: Threshold, anomaly_scores: ArrayLike = (), n_images: int = 0) -> str:
    """The guaranteed false-alarm rate and the misses among known anomalies' scores, in sentences for people.

    These are scores of items; ``n_images`` show them.
    """
    sentences = []
    if not threshold.is_achievable:
        needed = least_normals(threshold.rate, threshold.confidence)
        sentences.append(
            f"{percent(threshold.rate)} cannot be guaranteed: {needed:,} held-out normal items are needed."
        )
    sentences.append(
        f"With {percent(threshold.confidence, 6)} confidence at most {percent(threshold.rate_guaranteed)} of future "
        f"normal items are called defective ({percent(threshold.rate_expected)} on average). This rests on "
        f"{threshold.n_normals:,} held-out normal item{'s' * (threshold.n_normals != 1)}, and is valid while normal "
        "items do not change."
    )
    if np.size(anomaly_scores):
        missed = miss_rate(anomaly_scores, threshold.defective, threshold.confidence)
        known = f"defective items ({n_images:,} images)" if n_images > missed.n_anomalies else "defects"
        sentences.append(
            f"{missed.n_missed:,} of {missed.n_anomalies:,} known {known} are missed: {percent(missed.rate)}, "
            f"{percent(missed.confidence, 6)} interval {percent(missed.low)} to {percent(missed.high)}."
        )
    return " ".join(sentences)


def percent(share: float, digits: int = 3) -> str:
    """A share in so many digits."""
    return f"{float(f'{100 * share:.{digits}g}'):g} %"


def _check(rate: float, confidence: float) -> None:
    if not 0 < rate < 1:
        raise InputError(f"The false-alarm rate is {rate}; it must lie between 0 and 1, e.g. 0.01 for 1 %")
    if not 0.5 <= confidence < 1:
        raise InputError(f"The confidence is {confidence}; it must be at least 0.5 and below 1, e.g. 0.95")


def _not_nan(scores: ArrayLike, consequence: str) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise InputError(f"A score is not a number: {consequence}")
    return values


def _finite(scores: ArrayLike, name: str) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InputError(f"The {name} have shape {values.shape}; one number for each of at least one is needed")
    if not np.isfinite(values).all():
        raise InputError(f"{int((~np.isfinite(values)).sum())} of {len(values)} {name} are not finite")
    return values
