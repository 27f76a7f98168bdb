"""A batch of images against the held-out normals: are its scores those of items that the thresholds rest on?

Let x_(j) be the score that three quarters of n held-out normals do not exceed. Of m exchangeable normals the number N
with a score up to x_(j) is beta-binomial, BB(m, j, n + 1 − j). A batch may have defects, so only half of its images
are taken for normals: p = P(N ≤ number of the batch's scores up to x_(j)), N ~ BB(⌈m/2⌉, j, n + 1 − j). Whatever the
other half is, p ≤ a has probability a at most. What is lower than usual raises no alarm and is not tested: the final
model gives even new normals slightly lower scores than those of cross-fitting.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.inspection.model import HeldOutScores
from mpfm_kedro.inspection.thresholds import percent

BULK = 0.75  # share of the normals whose scores are not unusual
NORMALS = 0.5  # share of a batch that is taken for normal
LEVEL = 0.001  # false-alarm rate of the test


@dataclass(frozen=True)
class Shift:
    """How a batch differs from the normals."""

    n_images: int
    above: dict[str, float]  # share of the batch with more than three quarters of the normals: score, score_g, …

    @property
    def moved(self) -> str:
        """The part that differs most."""
        return max(PART_COLUMNS, key=lambda part: self.above[part])

    def describe(self) -> str:
        """For people."""
        return (
            f"{percent(self.above['score'])} of these {self.n_images:,} images score higher than three quarters of the "
            f"normals, most by S_{self.moved[-1]}. Either more than half of them are defective, or they are unlike the "
            "normals that the model has learned from, such as of another camera, light or product, and the guarantee "
            f"does not hold for them (p < {LEVEL:g}). If they are good, make a model with some of them"
        )


def shift_p_value(scores: ArrayLike, normal_scores: ArrayLike) -> float:
    """p of a batch (m,) among held-out normal items (n,)."""
    from scipy.stats import betabinom  # slow to import

    values, normals = np.asarray(scores, dtype=np.float64), np.sort(normal_scores)
    n, m = len(normals), math.ceil(NORMALS * len(values))
    j = min(n, math.ceil(BULK * (n + 1)))
    return float(betabinom.cdf((values <= normals[j - 1]).sum(), m, j, n + 1 - j))


def compare_batch(predictions: pd.DataFrame, held_out: HeldOutScores) -> Shift | None:
    """The shift of a batch that is unlike the normals; None where it is not, or is too small to tell: below ten."""
    batch = predictions[predictions["error"] == ""]
    if shift_p_value(batch["score"], held_out.item_scores) >= LEVEL:
        return None
    columns = ["score", *PART_COLUMNS]
    signs = [-1 if name == "score_n" else 1 for name in columns]  # S_n is a normality
    scores, usual = batch[columns].astype(float) * signs, (held_out.normals[columns] * signs).quantile(BULK)
    return Shift(len(batch), {name: float((scores[name] > usual[name]).mean()) for name in columns})
