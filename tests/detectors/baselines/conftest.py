from collections import namedtuple
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context, TrainingData

torch.set_num_threads(1)

CHANNELS, SIDE, COLUMNS = 16, 6, 24

Areas = namedtuple("Areas", "known unseen pseudo detector")


def synthetic_rows(seed, count, kind=None, views=1):
    """Noise; a kind of anomaly adds to its own four channels at four positions, and to its own four columns."""
    rng = np.random.default_rng(seed)
    maps = rng.normal(2, 1, (count * views, CHANNELS, SIDE, SIDE))
    pooled = rng.normal(-1, 3, (count * views, COLUMNS))
    if kind is not None:
        own = slice(4 * kind, 4 * kind + 4)
        for one in maps:
            top, left = rng.integers(SIDE - 1, size=2)
            one[own, top : top + 2, left : left + 2] += 3
        pooled[:, own] += 5
    source = np.tile(np.arange(count), views)
    return FeatureRows(pooled.astype(np.float32), maps.astype(np.float16), np.arange(count * views), source)


def synthetic_data(normals=80, pseudo=80, known=10, views=4):
    """Known anomalies of kind 0, pseudo-anomalies of kind 2; kind 1 is never seen."""
    return TrainingData(synthetic_rows(1, normals), synthetic_rows(2, pseudo, 2), synthetic_rows(3, known, 0, views))


@pytest.fixture(scope="session")
def make_data():
    return synthetic_data


@pytest.fixture(scope="session")
def make_rows():
    return synthetic_rows


@pytest.fixture(scope="session")
def areas():
    """AUC of normals against each kind of anomaly, after a full fit; and what was fitted."""

    @cache
    def of(cls, pseudo=80):
        detector = cls().fit(synthetic_data(pseudo=pseudo), 0, Context())
        normals = detector.score_samples(synthetic_rows(10, 100)).score
        anomalies = [detector.score_samples(synthetic_rows(11 + kind, 100, kind)).score for kind in range(3)]
        label = np.repeat([0, 1], 100)
        return Areas(*(roc_auc_score(label, np.concatenate([normals, scores])) for scores in anomalies), detector)

    return of


@pytest.fixture
def brief_scores():
    """Scores of 30 synthetic images after a few steps only."""

    def of(cls, seed=0, **data):
        detector = cls(steps=60).fit(synthetic_data(**data), seed, Context())
        return detector.score_samples(synthetic_rows(20, 30, 0)).score

    return of
