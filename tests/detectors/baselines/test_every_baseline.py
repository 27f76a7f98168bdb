"""What holds for every baseline and reference: what it learns from, its seed and its memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.baselines.ahl import AHL
from mpfm_kedro.detectors.baselines.classifiers import SAOE
from mpfm_kedro.detectors.baselines.dpdl import DPDL
from mpfm_kedro.detectors.baselines.dra import DRA
from mpfm_kedro.detectors.baselines.gradient_training import GradientDetector
from mpfm_kedro.detectors.registry import baseline, baselines
from mpfm_kedro.errors import InputError

TRAINED = pytest.mark.parametrize(
    "cls", [cls for cls in baselines() if issubclass(cls, GradientDetector)], ids=lambda cls: cls.name
)
LEARN_FROM_PSEUDO = pytest.mark.parametrize("cls", [SAOE, DRA, AHL, DPDL], ids=lambda cls: cls.name)


@TRAINED
def test_finds_the_known_kind_and_an_unseen_one_worse(cls, areas):
    assert areas(cls).known > 0.9
    assert areas(cls).unseen < areas(cls).known - 0.2


@LEARN_FROM_PSEUDO
def test_pseudo_anomalies_teach_their_kind(cls, areas):
    assert areas(cls).pseudo > 0.9
    assert areas(cls, pseudo=0).pseudo < areas(cls).pseudo - 0.2


@TRAINED
def test_the_loss_falls_and_ends_flat(cls, areas):
    losses = np.array(areas(cls).detector.losses)
    assert len(losses) == 1000
    first, late, last = losses[:20].mean(), losses[600:800].mean(), losses[800:].mean()
    assert last < 0.9 * first
    assert abs(last - late) < 0.1 * (first - last)


@TRAINED
def test_scores_depend_on_the_seed_only(cls, brief_scores):
    """No random state outside is read or changed."""
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = brief_scores(cls)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    torch.manual_seed(2)
    np.testing.assert_array_equal(brief_scores(cls), first)
    assert not np.allclose(brief_scores(cls, seed=1), first)


@TRAINED
@pytest.mark.parametrize(
    "little", [{"known": 1}, {"known": 1, "views": 1}, {"normals": 10, "pseudo": 10}, {"pseudo": 0}]
)
def test_little_to_learn_from(cls, little, brief_scores):
    scores = brief_scores(cls, **little)
    assert scores.shape == (30,)
    assert np.isfinite(scores).all() and np.ptp(scores) > 0


@TRAINED
def test_scores_do_not_depend_on_their_neighbours(cls, areas, make_rows):
    detector, rows = areas(cls).detector, make_rows(40, 70, 0)
    few, all_of_them = (detector.score_samples(some).score for some in (rows.take(np.arange(3)), rows))
    np.testing.assert_allclose(few, all_of_them[:3], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("cls", baselines(), ids=lambda cls: cls.name)
def test_what_is_learned_is_the_state_dict(cls, make_data, make_rows):
    data, rows = make_data(), make_rows(20, 30, 0)
    one = cls(steps=20).fit(data, 3, Context())
    other = cls(steps=20).fit(replace(data, normals=make_rows(5, len(data.normals))), 4, Context())
    expected = one.score_samples(rows).score
    assert not np.allclose(other.score_samples(rows).score, expected)
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(other.score_samples(rows).score, expected)


@TRAINED
def test_scores_do_not_depend_on_the_memory(cls, make_data, make_rows):
    rows, data = make_rows(20, 30, 0), make_data()
    plenty, none = (
        cls(steps=40).fit(data, 3, Context(memory=memory)).score_samples(rows).score for memory in (1 << 30, 0)
    )
    np.testing.assert_array_equal(none, plenty)


def test_an_unknown_baseline_is_an_error_that_names_all():
    assert [baseline(cls.name) for cls in baselines()] == baselines()
    with pytest.raises(InputError, match=r"'DevNett'.*DevNet, FLOS.*kNN-5"):
        baseline("DevNett")
