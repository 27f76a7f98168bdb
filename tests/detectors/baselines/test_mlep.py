import math

import pytest
import torch

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, SEEN
from mpfm_kedro.detectors.baselines.mlep import MLEP, Embedded, margin_loss


def test_finds_the_known_kind(areas):
    assert areas(MLEP).known > 0.9


def test_an_unseen_kind_is_found_worse(areas):
    assert areas(MLEP).unseen < areas(MLEP).known - 0.2


def test_same_seed_same_scores(depends_on_the_seed_only):
    depends_on_the_seed_only(MLEP)


def test_little_to_learn_from(works_on_little):
    works_on_little(MLEP)


def test_margin_loss_by_hand():
    """Two normals 1 apart; one anomaly at 3 and √10, far enough, and one at 1 and √2, too near."""
    normals = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    anomalies = torch.tensor([[0.0, 3.0], [0.0, 1.0]])
    expected = (0 + 0 + (1 + 1 - 1) + (1 + 1 - math.sqrt(2))) / 4
    assert float(margin_loss(normals, anomalies)) == pytest.approx(expected, rel=1e-5)


def test_margin_loss_of_equal_normals_has_a_gradient():
    normals = torch.ones(3, 4, requires_grad=True)
    margin_loss(normals, torch.full((2, 4), 1.1)).backward()
    assert torch.isfinite(normals.grad).all()


def test_loss_adds_margin_and_prediction():
    """Logits of zero cost log 2; the anomaly is 0.5 from normals that are equal."""
    output = Embedded(torch.tensor([[0.0], [0.0], [0.5]]), torch.zeros(3))
    loss = MLEP().loss(output, torch.tensor([NORMAL, NORMAL, SEEN]), torch.Generator())
    assert float(loss) == pytest.approx(0.5 + math.log(2), rel=1e-4)


def test_maps_are_not_read(brief_scores, monkeypatch):
    monkeypatch.setattr("mpfm_kedro.backbones.rows.FeatureRows.map_batch", None)
    assert len(brief_scores(MLEP)) == 30
