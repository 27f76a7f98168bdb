import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.baselines.references import (
    LogisticRegression,
    LogisticRegressionAndMahalanobis,
    Mahalanobis,
    MixtureOfModes,
    NearestNormals,
    PatchNeighbours,
)

POOLED = [Mahalanobis, MixtureOfModes, NearestNormals]
ALL = [*POOLED, PatchNeighbours, LogisticRegression, LogisticRegressionAndMahalanobis]


def rows_of(pooled, maps=None):
    maps = np.zeros((len(pooled), 2, 3, 3), np.float16) if maps is None else maps.astype(np.float16)
    return FeatureRows(pooled.astype(np.float32), maps, np.arange(len(pooled)), np.arange(len(pooled)))


def training(normals, anomalies=None):
    none = normals.take(np.arange(0))
    return TrainingData(normals, none, none if anomalies is None else anomalies)


def auc(detector, normals, anomalies):
    label = np.repeat([0, 1], [len(normals), len(anomalies)])
    return roc_auc_score(label, np.concatenate([scores(detector, normals), scores(detector, anomalies)]))


def fitted(cls, data, seed=0):
    return cls().fit(data, seed, Context())


def scores(detector, rows):
    return detector.score_samples(rows).score


def two_modes(n, d=12, seed=0):
    """Two groups of points, one long in the even directions and one in the odd ones."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, n)
    spread = np.where((np.arange(d) + group[:, None]) % 2, 2.0, 0.2)
    return rng.normal(size=(n, d)) * spread + 10 * group[:, None], group


def strangers_of_two_modes(n, d=12, seed=1):
    """Each like a normal of the one group, in the place of the other."""
    z, group = two_modes(n, d, seed)
    return z - 10 * group[:, None] + 10 * (1 - group[:, None])


def test_distance_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    z, other = rng.normal(size=(60, 8)) * np.geomspace(3, 0.1, 8), rng.normal(size=(20, 8))
    expected = LedoitWolf().fit(z).mahalanobis(other)
    detector = Mahalanobis()
    detector.learn(z, other, 0)
    np.testing.assert_allclose(detector.score(torch.from_numpy(other)) ** 2, expected, rtol=1e-6)


def test_mahalanobis_sees_what_deviates_where_normals_do_not_vary():
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    spread = np.geomspace(3, 0.1, 10)
    normals, unseen, anomalies = ((rng.normal(size=(300, 10)) * spread) @ rotation for _ in range(3))
    anomalies = anomalies + 0.6 * rotation[-1]
    data = training(rows_of(normals))
    by_distance = auc(fitted(NearestNormals, data), rows_of(unseen), rows_of(anomalies))
    assert auc(fitted(Mahalanobis, data), rows_of(unseen), rows_of(anomalies)) > max(0.95, by_distance + 0.2)


def test_modes_with_their_own_covariance_beat_one_gaussian():
    data = training(rows_of(two_modes(400)[0]))
    unseen, anomalies = rows_of(two_modes(200, seed=2)[0]), rows_of(strangers_of_two_modes(200))
    assert auc(fitted(Mahalanobis, data), unseen, anomalies) < 0.7
    assert auc(fitted(MixtureOfModes, data), unseen, anomalies) > 0.95


def test_mixture_of_modes_is_the_likelihood_of_the_mixture():
    normals = two_modes(4000, d=4)[0]
    points = two_modes(50, d=4, seed=3)[0]
    means = [np.zeros(4), np.full(4, 10.0)]
    spreads = [np.array([0.2, 2, 0.2, 2]), np.array([2, 0.2, 2, 0.2])]
    density = sum(
        0.5 * multivariate_normal(mean, np.diag(spread**2)).pdf(points)
        for mean, spread in zip(means, spreads, strict=True)
    )
    score = scores(fitted(MixtureOfModes, training(rows_of(normals))), rows_of(points))
    assert np.corrcoef(score, -np.log(density))[0, 1] > 0.99


def test_nearest_normals_finds_what_lies_between_groups():
    rng = np.random.default_rng(0)
    ring = rng.normal(size=(300, 2))
    ring = 5 * ring / np.linalg.norm(ring, axis=1, keepdims=True) + 0.2 * rng.normal(size=(300, 2))
    data = training(rows_of(ring[:200]))
    inside = rows_of(0.5 * rng.normal(size=(100, 2)))
    assert auc(fitted(NearestNormals, data), rows_of(ring[200:]), inside) > 0.99
    assert auc(fitted(Mahalanobis, data), rows_of(ring[200:]), inside) < 0.1


def textures(n, seed, defect=0.0):
    """Maps with spots in which two channels rise together; in the place of a defect only the first of them does."""
    rng = np.random.default_rng(seed)
    maps = 0.3 * rng.normal(size=(n, 6, 12, 12))
    for image in maps:
        for row, column in rng.integers(0, 9, size=(4, 2)):
            image[4:, row : row + 3, column : column + 3] = 2 + 0.2 * rng.normal(size=(2, 3, 3))
        image[5, 4:7, 4:7] -= defect * (image[5, 4:7, 4:7] > 1)
        image[4, 4:7, 4:7] += defect * (image[4, 4:7, 4:7] < 1)
    pooled = np.concatenate([maps.mean((2, 3)), maps.max((2, 3)), maps.std((2, 3))], axis=1)
    return rows_of(pooled, maps)


def test_patches_show_a_small_defect_that_pooled_statistics_lose():
    data = training(textures(80, seed=0))
    unseen, anomalies = textures(100, seed=1), textures(100, seed=2, defect=2)
    by_patch = auc(fitted(PatchNeighbours, data), unseen, anomalies)
    assert by_patch > 0.95
    assert by_patch > 0.1 + max(auc(fitted(cls, data), unseen, anomalies) for cls in POOLED)


def seen_and_unseen_class(seed=0, d=20):
    """Normals, ten known anomalies, and tests: the known class, and one that deviates in another direction."""
    rng = np.random.default_rng(seed)
    parts = {"normals": 200, "known": 10, "test": 150, "seen": 150, "unseen": 150}
    z = {name: rng.normal(size=(n, d)) for name, n in parts.items()}
    for name in ("known", "seen"):
        z[name][:, 0] += 4
    z["unseen"][:, 1] += 7
    return {name: rows_of(points) for name, points in z.items()}


def test_logistic_regression_learns_the_known_class_and_misses_another():
    z = seen_and_unseen_class()
    detector = fitted(LogisticRegression, training(z["normals"], z["known"]))
    assert auc(detector, z["test"], z["seen"]) > 0.9
    assert auc(detector, z["test"], z["unseen"]) < 0.65


def test_the_sum_keeps_the_unseen_class_and_gains_on_the_known_one():
    z = seen_and_unseen_class()
    data = training(z["normals"], z["known"])
    both, distance = fitted(LogisticRegressionAndMahalanobis, data), fitted(Mahalanobis, data)
    assert auc(both, z["test"], z["unseen"]) > 0.85
    assert auc(both, z["test"], z["seen"]) > auc(distance, z["test"], z["seen"]) + 0.02


def test_the_sum_is_standardised_on_normals_that_were_not_fitted():
    rng = np.random.default_rng(0)
    normals, unseen = (rng.normal(size=(n, 60)) @ np.diag(np.geomspace(5, 0.05, 60)) for n in (70, 400))
    rotation = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    data = training(rows_of(normals @ rotation), rows_of((normals[:5] + 1) @ rotation))
    parts = [scores(fitted(cls, data), rows_of(unseen @ rotation)) for cls in (LogisticRegression, Mahalanobis)]
    both = scores(fitted(LogisticRegressionAndMahalanobis, data), rows_of(unseen @ rotation))
    of_logit, of_distance = (np.corrcoef(both, part)[0, 1] for part in parts)
    assert abs(of_logit - of_distance) < 0.15  # by the fitted normals the distance would have several times the weight


def test_augmented_views_of_known_anomalies_are_excluded():
    z = seen_and_unseen_class()
    known = z["known"]
    views = rows_of(np.concatenate([known.pooled, -known.pooled]))
    views = FeatureRows(views.pooled, views.maps, views.rows, np.tile(np.arange(10), 2))
    plain = scores(fitted(LogisticRegression, training(z["normals"], known)), z["test"])
    np.testing.assert_array_equal(scores(fitted(LogisticRegression, training(z["normals"], views)), z["test"]), plain)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.name)
def test_few_normals_one_anomaly_and_constant_columns(cls):
    rng = np.random.default_rng(0)
    rows = textures(40, seed=0)
    rows.pooled[:, 3] = 7
    rows.maps[:, 2] = 0
    normals = rows.take(np.arange(12))
    anomalies = FeatureRows(rows.pooled[20:21] + 9, rows.maps, np.array([20]), np.array([0]))
    rows.maps[30:, 4] += 30
    state = torch.get_rng_state()
    data = training(normals, anomalies)
    first, second = (scores(fitted(cls, data, seed=5), rows) for _ in range(2))
    assert first.shape == (40,) and np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    far = FeatureRows(rows.pooled + 9 * rng.uniform(0.9, 1.1), rows.maps, np.full(40, 35), rows.source)
    assert scores(fitted(cls, data, seed=5), far).min() > first[12:30].max()
