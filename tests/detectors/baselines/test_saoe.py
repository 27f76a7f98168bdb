import pytest
import torch

from mpfm_kedro.detectors.baselines.saoe import SAOE


def test_finds_the_known_kind(areas):
    assert areas(SAOE).known > 0.9


def test_an_unseen_kind_is_found_worse(areas):
    assert areas(SAOE).unseen < areas(SAOE).known - 0.2


def test_same_seed_same_scores(depends_on_the_seed_only):
    depends_on_the_seed_only(SAOE)


def test_little_to_learn_from(works_on_little):
    works_on_little(SAOE)


def test_the_score_is_the_log_odds_of_not_normal():
    logits = torch.tensor([[0.0, 1.0, -2.0], [0.0, -3.0, -4.0]])
    p = logits.softmax(1)[:, 0]
    torch.testing.assert_close(SAOE().anomaly_score(logits), torch.log((1 - p) / p))


def test_pseudo_anomalies_teach_their_kind(areas):
    assert areas(SAOE).pseudo > 0.9
    assert areas(SAOE, pseudo=0).pseudo < areas(SAOE).pseudo - 0.2


def test_groups_are_the_classes():
    """A sure and right three-way answer costs nothing; the same answer for other groups costs its margin."""
    logits = torch.tensor([[0.0, -50.0, -50.0], [0.0, 50.0, 0.0], [0.0, 0.0, 50.0]])
    right = SAOE().loss(logits, torch.tensor([0, 1, 2]), torch.Generator())
    wrong = SAOE().loss(logits, torch.tensor([1, 2, 0]), torch.Generator())
    assert float(right) == pytest.approx(0, abs=1e-6)
    assert float(wrong) == pytest.approx(50, rel=1e-5)
