"""The promised false-alarm rate holds on new normals when flow and modules are trained."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from mpfm_kedro.detectors.mpfm.detector import load, load_fold_models
from mpfm_kedro.inspection.thresholds import choose_threshold
from small_mpfm import CPU, fit, make_data, make_rows, specify

RATE, CONFIDENCE, FITS = 0.1, 0.9, 20
STRONG = {"learning_rate": 0.02, "iterations_per_epoch": 20, "hidden": 16}  # so that the flow moves, and fits noise


def new_normals(seed: int, n: int = 1500, d: int = 6):
    rng = np.random.default_rng(seed)
    pooled = rng.normal(size=(n, d)) * np.geomspace(1, 0.2, d) + 4 * (np.arange(n) % 2)[:, None]
    return make_rows(pooled, seed=seed + 1)


@pytest.fixture(scope="module")
def false_alarms() -> np.ndarray:
    """Share of new normals above the threshold of held-out normals, and of learned ones, (fits, 2)."""
    found = []
    for seed in range(FITS):
        data, *_ = make_data(n=100, n_known=3, seed=10 * seed)
        pieces = fit(specify(**STRONG), data, seed)
        detector, normals = load(pieces, CPU), new_normals(10_000 + seed)
        held_out = [
            each.detector.score_samples(data.normals.take(each.normals)).score
            for each in load_fold_models(pieces, data, seed, CPU)
        ]
        learned = detector.score_samples(data.normals).score
        scores = detector.score_samples(normals).score
        thresholds = [choose_threshold(own, RATE, CONFIDENCE).defective for own in (np.concatenate(held_out), learned)]
        found.append([(scores > threshold).mean() for threshold in thresholds])
    return np.array(found)


def test_the_promise_is_kept_as_often_as_it_says(false_alarms):
    broken = int((false_alarms[:, 0] > RATE).sum())
    assert broken <= binom.ppf(0.999, FITS, 1 - CONFIDENCE), false_alarms[:, 0]


def test_normals_that_were_learned_from_would_break_it(false_alarms):
    broken = int((false_alarms[:, 1] > RATE).sum())
    assert broken > binom.ppf(0.999, FITS, 1 - CONFIDENCE), false_alarms[:, 1]
