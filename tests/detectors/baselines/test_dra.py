import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.baselines.dra import DRA, HeadScores
from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, PSEUDO, SEEN


def test_finds_the_known_kind(areas):
    assert areas(DRA).known > 0.9


def test_an_unseen_kind_is_found_worse(areas):
    assert areas(DRA).unseen < areas(DRA).known - 0.2


def test_same_seed_same_scores(depends_on_the_seed_only):
    depends_on_the_seed_only(DRA)


def test_little_to_learn_from(works_on_little):
    works_on_little(DRA)


def test_the_holistic_head_is_subtracted():
    scores = HeadScores(*(torch.tensor([value]) for value in (1.0, 20.0, 300.0, 4000.0)))
    assert float(DRA().anomaly_score(scores)) == 4319


@pytest.mark.parametrize(
    ("head", "of_normal", "of_seen", "of_pseudo"),
    [("holistic", 5, 2, 2), ("seen", 2, 5, None), ("pseudo", 2, None, 5), ("residual", 2, 5, 5)],
)
def test_each_head_learns_from_its_own_rows(head, of_normal, of_seen, of_pseudo):
    """Where all scores are zero but one of 2: the loss changes by its share of the head's rows, up or down or not."""
    group = torch.tensor([NORMAL, SEEN, PSEUDO])

    def loss(scores):
        zero = HeadScores(*(torch.zeros(3) for _ in range(4)))
        return float(DRA().loss(zero._replace(**{head: scores}), group, torch.Generator().manual_seed(0)))

    rows = sum(part is not None for part in (of_normal, of_seen, of_pseudo))
    for place, target in enumerate((of_normal, of_seen, of_pseudo)):
        moved = torch.zeros(3)
        moved[place] = 2
        change = {None: 0, 5: -2 / rows, 2: 2 / rows}[target]
        assert loss(moved) - loss(torch.zeros(3)) == pytest.approx(change, abs=0.1)


def test_references_are_five_normals_drawn_at_random():
    """Normal i is a map of 2^i: the mean of the references tells which they are."""
    maps = (2.0 ** torch.arange(20))[:, None, None, None].expand(20, 6, 6, 16)
    drawn = set()
    for seed in range(4):
        torch.manual_seed(seed)
        network = DRA().network([torch.zeros(20, 24), maps], 20)
        total = int(5 * network.residual.reference.double().mean().round(decimals=1))
        assert total.bit_count() == 5
        drawn.add(total)
    assert len(drawn) > 1


def test_fewer_than_five_normals_are_all_references():
    maps = torch.arange(3.0)[:, None, None, None].expand(3, 6, 6, 16)
    assert DRA().network([torch.zeros(3, 24), maps], 3).residual.reference.mean() == 1


def test_pseudo_anomalies_teach_their_kind(areas):
    assert areas(DRA).pseudo > 0.9


def test_scores_do_not_depend_on_their_neighbours(areas, make_rows):
    detector, rows = areas(DRA).detector, make_rows(40, 70, 0)
    few, all_of_them = (detector.score_samples(some).score for some in (rows.take(np.arange(3)), rows))
    np.testing.assert_allclose(few, all_of_them[:3], rtol=1e-3, atol=1e-3)
