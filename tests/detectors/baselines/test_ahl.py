"""AHL: its subsets, its batches and the importance of a subset."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.baselines.ahl import Importance, heterogeneous_subsets
from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, PSEUDO, SEEN


def subsets_of(data):
    """Of 30 normals in three clusters."""
    return heterogeneous_subsets(data, np.arange(30) % 3, np.random.default_rng(0))


@pytest.mark.parametrize("n_known", [1, 2, 5, 10])
def test_subsets_are_ordered_pairs_of_clusters_and_all(n_known, make_data):
    """Rows 0–29 are normals, then come two views of each known anomaly, then a pseudo-anomaly of each normal."""
    data = make_data(normals=30, pseudo=30, known=n_known, views=2)
    subsets = subsets_of(data)
    assert len(subsets) == 7
    clusters = [[set((groups.normals % 3).tolist()) for groups in subset] for subset in subsets]
    assert sorted((*a, *b) for a, b in clusters[:6]) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert clusters[6] == [{0, 1, 2}, {0, 1, 2}]
    for support, query in subsets:
        for groups in (support, query):
            assert (groups.pseudo - 30 - 2 * n_known).tolist() == groups.normals.tolist()
        known = [set((data.anomalies.source[groups.anomalies - 30]).tolist()) for groups in (support, query)]
        assert known[0] | known[1] == set(range(n_known))
        assert len(support.anomalies) == 2 * len(known[0])  # both views
        assert (known[0] & known[1] == set()) == (n_known > 1)
        assert len(known[0]) - len(known[1]) in (0, 1)


@pytest.mark.parametrize("n_pseudo", [30, 0])
def test_batches_hold_32_normals_or_pseudo_anomalies_and_16_known_anomalies(n_pseudo, make_data):
    support, _ = subsets_of(make_data(normals=30, pseudo=n_pseudo))[0]
    positions = SimpleNamespace(batch=lambda index: index, device="cpu")  # in place of the maps there
    index, group = support.draw(positions, torch.Generator().manual_seed(0))
    assert [int((group == kind).sum()) for kind in (NORMAL, SEEN, PSEUDO)] == (
        [16, 16, 16] if n_pseudo else [32, 16, 0]
    )
    for kind, rows in ((NORMAL, support.normals), (SEEN, support.anomalies), (PSEUDO, support.pseudo)):
        assert set(index[group == kind].tolist()) <= set(rows.tolist())


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
