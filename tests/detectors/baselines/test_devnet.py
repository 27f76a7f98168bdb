import pytest
import torch

from mpfm_kedro.detectors.baselines.devnet import DevNet, deviation_loss


def test_finds_the_known_kind(areas):
    assert areas(DevNet).known > 0.9


def test_an_unseen_kind_is_found_worse(areas):
    assert areas(DevNet).unseen < areas(DevNet).known - 0.2


def test_same_seed_same_scores(depends_on_the_seed_only):
    depends_on_the_seed_only(DevNet)


def test_little_to_learn_from(works_on_little):
    works_on_little(DevNet)


def test_deviation_loss_by_hand():
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


def test_the_loss_falls_and_ends_flat(areas):
    losses = torch.tensor(areas(DevNet).detector.losses)
    assert len(losses) == 1000
    assert losses[-200:].mean() < 0.9 * losses[:20].mean()
    assert losses[-200:].mean() == pytest.approx(float(losses[-400:-200].mean()), rel=0.05)
