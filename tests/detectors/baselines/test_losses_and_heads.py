"""The losses and heads of DevNet, FLOS, SAOE, MLEP and DRA, by hand."""

import math

import pytest
import torch

from mpfm_kedro.detectors.baselines.classifiers import FLOS, SAOE, deviation_loss, focal_loss, margin_loss
from mpfm_kedro.detectors.baselines.dra import DRA
from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, PSEUDO, SEEN


def test_deviation_loss():
    """Draws with mean m and standard deviation s: normals 1 and -2, anomalies 3 and 9; the last one deviates enough."""
    draws = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    m, s = float(draws.mean()), float(draws.std())
    loss = deviation_loss(
        torch.tensor([1.0, -2.0, 3.0, 9.0]),
        torch.tensor([False, False, True, True]),
        torch.Generator().manual_seed(3),
    )
    expected = (abs(1 - m) / s + abs(-2 - m) / s + (5 - (3 - m) / s) + 0) / 4
    assert float(loss) == pytest.approx(expected, abs=1e-5)
    assert float(loss) == pytest.approx((1 + 2 + 2) / 4, abs=0.1)


def test_focal_loss():
    """p of the true class: 1/2, 3/4 and 1/4."""
    logits = torch.tensor([0.0, math.log(3), math.log(3)])
    expected = [math.log(2) / 4, math.log(4 / 3) / 16, 9 * math.log(4) / 16]
    for logit, abnormal, value in zip(logits, [True, True, False], expected, strict=True):
        assert float(focal_loss(logit[None], torch.tensor([abnormal]))) == pytest.approx(value, rel=1e-5)
    assert float(focal_loss(logits, torch.tensor([True, True, False]))) == pytest.approx(sum(expected) / 3, rel=1e-5)


def test_normals_get_a_negative_logit_of_flos(areas, make_rows):
    """The top positions' score alone is never negative: the offset has been learned."""
    detector = areas(FLOS).detector
    assert (detector.score_samples(make_rows(30, 50)).score < 0).mean() > 0.9
    assert (detector.score_samples(make_rows(31, 50, 0)).score > 0).mean() > 0.9


def test_the_score_of_saoe_is_the_log_odds_of_not_normal():
    logits = torch.tensor([[0.0, 1.0, -2.0], [0.0, -3.0, -4.0]])
    p = logits.softmax(1)[:, 0]
    torch.testing.assert_close(SAOE().anomaly_score(logits[:, 1:]), torch.log((1 - p) / p))


def test_groups_are_the_classes_of_saoe():
    """A sure and right three-way answer costs nothing; the same answer for other groups costs its margin."""
    logits = torch.tensor([[-50.0, -50.0], [50.0, 0.0], [0.0, 50.0]])
    for group, loss in (([NORMAL, SEEN, PSEUDO], 0), ([SEEN, PSEUDO, NORMAL], 50)):
        found = SAOE().loss(logits, torch.tensor(group), torch.Generator())
        assert float(found) == pytest.approx(loss, abs=1e-3)


def test_margin_loss():
    """Two normals 1 apart; one anomaly at 3 and √10, far enough, and one at 1 and √2, too near."""
    normals = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    anomalies = torch.tensor([[0.0, 3.0], [0.0, 1.0]])
    expected = (0 + 0 + (1 + 1 - 1) + (1 + 1 - math.sqrt(2))) / 4
    assert float(margin_loss(normals, anomalies)) == pytest.approx(expected, rel=1e-5)


def test_margin_loss_of_equal_normals_has_a_gradient():
    normals = torch.ones(3, 4, requires_grad=True)
    margin_loss(normals, torch.full((2, 4), 1.1)).backward()
    assert torch.isfinite(normals.grad).all()


@pytest.mark.parametrize(
    ("head", "of_normal", "of_seen", "of_pseudo"),
    [(0, 5, 2, 2), (1, 2, 5, None), (2, 2, None, 5), (3, 2, 5, 5)],
    ids=["holistic", "seen", "pseudo", "residual"],
)
def test_each_head_of_dra_learns_from_its_own_rows(head, of_normal, of_seen, of_pseudo):
    """Where all scores are zero but one of 2: the loss changes by its share of the head's rows, up or down or not."""
    group = torch.tensor([NORMAL, SEEN, PSEUDO])

    def loss(scores):
        return float(DRA().loss(scores, group, torch.Generator().manual_seed(0)))

    rows = sum(part is not None for part in (of_normal, of_seen, of_pseudo))
    for position, target in enumerate((of_normal, of_seen, of_pseudo)):
        scores = torch.zeros(3, 4)
        scores[position, head] = 2
        change = {None: 0, 5: -2 / rows, 2: 2 / rows}[target]
        assert loss(scores) - loss(torch.zeros(3, 4)) == pytest.approx(change, abs=0.1)


@pytest.mark.parametrize("n_normals", [20, 3])
def test_references_of_dra_are_five_normals_drawn_at_random(n_normals):
    """Normal i is a map of 2^i: the mean of the references tells which they are; fewer than five are all references."""
    maps = (2.0 ** torch.arange(n_normals))[:, None, None, None].expand(n_normals, 6, 6, 16)
    drawn, number = set(), min(n_normals, 5)
    for seed in range(4):
        torch.manual_seed(seed)
        network = DRA().build([torch.zeros(n_normals, 24), maps], n_normals)
        total = round(number * float(network.reference.double().mean()))
        assert total.bit_count() == number
        drawn.add(total)
    assert (len(drawn) > 1) == (n_normals > 5)
