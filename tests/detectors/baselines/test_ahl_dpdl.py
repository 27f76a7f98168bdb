import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.baselines.ahl import AHL, Importance, heterogeneous_subsets
from mpfm_kedro.detectors.baselines.dpdl import DPDL, Bridge, LinearScore, Prototypes, dispersion_loss

BOTH = pytest.mark.parametrize("cls", [AHL, DPDL], ids=lambda cls: cls.name)


def images(n, seed, channel=None, channels=6, strength=2.5):
    """Maps of one of three kinds of normals; a defect raises one channel in a quarter of the positions."""
    rng = np.random.default_rng(seed)
    kind = 3 * np.eye(3, channels)[:, :, None, None]
    maps = 0.5 * rng.normal(size=(n, channels, 4, 4)) + kind[rng.integers(0, 3, n)]
    if channel is not None:
        maps[:, channel, :2, :2] += strength
    pooled = np.concatenate([maps.mean((2, 3)), maps.max((2, 3)), maps.std((2, 3))], axis=1)
    return FeatureRows(pooled.astype(np.float32), maps.astype(np.float16), np.arange(n), np.arange(n))


def joined(parts):
    """Views of the same images, one after the other."""
    pooled, maps = np.concatenate([each.pooled for each in parts]), np.concatenate([each.maps for each in parts])
    return FeatureRows(pooled, maps, np.arange(len(maps)), np.concatenate([each.source for each in parts]))


def problem(n_known=10, pseudo=True, normals=150):
    """Known anomalies raise channel 4, pseudo-anomalies (one of each normal) channel 3."""
    pseudo_anomalies = images(normals, 1, channel=3, strength=1.5)
    known = joined([images(n_known, 2, channel=4), images(n_known, 3, channel=4)])
    return TrainingData(images(normals, 0), pseudo_anomalies.take(np.arange(normals if pseudo else 0)), known)


def auc(detector, channel, strength=2.5):
    normal, anomalous = images(150, 8), images(150, 9, channel, strength=strength)
    label = np.repeat([0, 1], 150)
    return roc_auc_score(label, np.concatenate([detector.score_samples(rows).score for rows in (normal, anomalous)]))


@pytest.fixture(scope="module", params=[AHL, DPDL], ids=lambda cls: cls.name)
def trained(request):
    return request.param().fit(problem(pseudo=False), 0, Context())


def test_learns_the_known_class_and_misses_one_that_looks_the_other_way(trained):
    assert auc(trained, channel=4) > 0.95
    assert auc(trained, channel=5, strength=-1) < 0.75


def test_training_ends_where_the_loss_does_not_fall_any_more(trained):
    losses = np.array(trained.losses)
    assert len(losses) == 1000
    first, late, last = losses[:20].mean(), losses[600:800].mean(), losses[800:].mean()
    assert last < 0.8 * first
    assert abs(last - late) < 0.1 * (first - last)


def test_pseudo_anomalies_teach_what_known_ones_do_not(trained):
    detector = type(trained)(steps=300).fit(problem(), 0, Context())
    assert auc(detector, channel=3, strength=1.5) > max(0.85, auc(trained, channel=3, strength=1.5) + 0.1)
    assert auc(detector, channel=4) > 0.9


@BOTH
def test_same_seed_same_scores_with_few_normals_and_one_anomaly(cls):
    data, rows = problem(n_known=1, normals=12), images(5, 9, channel=4)
    for part in (data.normals, data.pseudo, data.anomalies, rows):
        part.maps[:, 2], part.pooled[:, 2] = 1, 1
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    scores = [cls(steps=120).fit(data, 7, Context()).score_samples(rows).score for _ in range(2)]
    assert np.isfinite(scores[0]).all() and scores[0].shape == (5,)
    np.testing.assert_array_equal(*scores)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    other = cls(steps=120).fit(data, 8, Context()).score_samples(rows).score
    assert not np.array_equal(other, scores[0])


@pytest.mark.parametrize("n_known", [1, 2, 5, 10])
def test_subsets_are_ordered_pairs_of_clusters_and_all(n_known):
    data = problem(n_known=n_known, normals=30)
    cluster = np.arange(30) % 3
    subsets = heterogeneous_subsets(data, cluster, np.random.default_rng(0))
    assert len(subsets) == 7
    clusters = [[set(cluster[groups.normals]) for groups in subset] for subset in subsets]
    assert sorted((*a, *b) for a, b in clusters[:6]) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert clusters[6] == [{0, 1, 2}, {0, 1, 2}]
    for support, query in subsets:
        for groups in (support, query):
            assert (groups.pseudo - 30).tolist() == groups.normals.tolist()
            assert groups.anomalies.min() >= 60
        known = [set((data.anomalies.source[groups.anomalies - 60]).tolist()) for groups in (support, query)]
        assert known[0] | known[1] == set(range(n_known))
        assert len(support.anomalies) == 2 * len(known[0])  # both views
        assert (known[0] & known[1] == set()) == (n_known > 1)
        assert len(known[0]) - len(known[1]) in (0, 1)


@pytest.mark.parametrize("pseudo", [True, False])
def test_batches_hold_32_normals_or_pseudo_anomalies_and_16_known_anomalies(pseudo):
    subset = heterogeneous_subsets(problem(pseudo=pseudo, normals=30), np.arange(30) % 3, np.random.default_rng(0))[0]
    index, abnormal = subset.support.draw(torch.Generator().manual_seed(0))
    assert len(index) == len(abnormal) == 48
    assert set(index[~abnormal].tolist()) <= set(subset.support.normals.tolist())
    assert (~abnormal).sum() == (16 if pseudo else 32)
    assert torch.isin(index, subset.support.anomalies).sum() == 16
    assert torch.isin(index, subset.support.pseudo).sum() == (16 if pseudo else 0)


def test_subsets_whose_detectors_do_well_elsewhere_count_more():
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        importance = Importance()
    torch.testing.assert_close(importance.weights(3), torch.full((3,), 1 / 3))
    for _ in range(60):
        importance.observe(torch.tensor([[1.0, 0.5, 0.5], [2.0, 1.0, 2.0], [1.0, 1.0, 1.0]]))
    expected = torch.tensor([-0.5, -2.0, -1.0]).softmax(0)
    torch.testing.assert_close(importance.weights(3), expected, atol=0.05, rtol=0)


def test_importance_learns_where_a_history_leads():
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        importance = Importance()
    level = np.array([1.0, 1.0])
    for epoch in range(200):
        level = np.array([2.0, 2.0]) if epoch % 10 == 0 else level * [0.9, 1.0]
        importance.observe(torch.from_numpy(np.tile(level[:, None], 2)).float())
    history = torch.tensor([[[1 / 0.9**k] * 2 for k in (4, 3, 2, 1, 0)], [[1.0, 1.0]] * 5])
    falling, level_error = importance(history).tolist()
    assert falling < level_error


def bridge_and_prototypes(seed=0, d=2):
    rng = torch.Generator().manual_seed(seed)
    mean, share = 2 * torch.randn(3, d, generator=rng), torch.tensor([0.5, 0.3, 0.2])
    return Bridge(mean, share), Prototypes(mean, share, 0.5)


def test_c_is_the_integral_of_the_potential():
    bridge, _ = bridge_and_prototypes()
    axis = torch.linspace(-12, 12, 601)
    y = torch.cartesian_prod(axis, axis)
    x = torch.tensor([[0.3, -0.4], [1.0, 0.5]])
    with torch.no_grad():
        area = float(axis[1] - axis[0]) ** 2
        integral = (x @ y.T + bridge.log_potential(y)).logsumexp(1) + np.log(area)
        torch.testing.assert_close(bridge.log_joint(x).logsumexp(1), integral, atol=1e-3, rtol=1e-3)
        density = (x @ y.T + bridge.log_potential(y) - integral[:, None]).exp() * area
        torch.testing.assert_close(bridge(x), density @ y, atol=1e-3, rtol=1e-3)


def test_the_bridge_learns_to_end_at_the_prototypes():
    bridge, prototypes = bridge_and_prototypes()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(bridge.parameters(), 0.03)
    for _ in range(600):
        x = torch.randn(128, 2, generator=generator)
        ends = prototypes.sample(128, generator)
        loss = bridge.log_joint(x).logsumexp(1).mean() - bridge.log_potential(ends).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        ends, arrived = prototypes.sample(4000, generator), bridge(torch.randn(4000, 2, generator=generator))
    np.testing.assert_allclose(arrived.mean(0), ends.mean(0), atol=0.25)


def test_dispersion_is_least_where_directions_are_spread():
    angle = torch.arange(8) * torch.pi / 4
    even, close = (torch.stack([each.cos(), each.sin()], dim=1) for each in (angle, angle / 20))
    assert dispersion_loss(even) < dispersion_loss(close) - 1
    torch.testing.assert_close(dispersion_loss(3 * even), dispersion_loss(even))


def test_linear_score_starts_at_zero_and_is_linear():
    head = LinearScore(4)
    assert head(torch.randn(5, 4)).tolist() == [0.0] * 5
    torch.nn.init.normal_(head.linear.weight)
    x, y = torch.randn(2, 3, 4)
    torch.testing.assert_close(head(2 * x - y), 2 * head(x) - head(y))
