import math

import pytest
import torch

from mpfm_kedro.detectors.baselines.flos import FLOS, focal_loss


def test_finds_the_known_kind(areas):
    assert areas(FLOS).known > 0.9


def test_an_unseen_kind_is_found_worse(areas):
    assert areas(FLOS).unseen < areas(FLOS).known - 0.2


def test_same_seed_same_scores(depends_on_the_seed_only):
    depends_on_the_seed_only(FLOS)


def test_little_to_learn_from(works_on_little):
    works_on_little(FLOS)


def test_focal_loss_by_hand():
    """p of the true class: 1/2, 3/4 and 1/4."""
    logits = torch.tensor([0.0, math.log(3), math.log(3)])
    expected = [math.log(2) / 4, math.log(4 / 3) / 16, 9 * math.log(4) / 16]
    for logit, abnormal, value in zip(logits, [True, True, False], expected, strict=True):
        assert float(focal_loss(logit[None], torch.tensor([abnormal]))) == pytest.approx(value, rel=1e-5)
    assert float(focal_loss(logits, torch.tensor([True, True, False]))) == pytest.approx(sum(expected) / 3, rel=1e-5)


def test_focal_loss_of_the_surely_wrong_is_finite():
    logits = torch.tensor([-200.0], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([True]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(200)
    assert torch.isfinite(logits.grad).all()


def test_normals_get_a_negative_logit(areas, make_rows):
    """The top positions' score alone is never negative: the offset has been learned."""
    detector = areas(FLOS).detector
    assert (detector.score_samples(make_rows(30, 50)).score < 0).mean() > 0.9
    assert (detector.score_samples(make_rows(31, 50, 0)).score > 0).mean() > 0.9
