"""A batch unlike the normals is noticed, and normals with defects are not taken for one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.inspection.batches import LEVEL, compare_batch, shift_p_value
from production_models import held_out_scores

DRAWS = 5000


def table(scores: np.ndarray) -> pd.DataFrame:
    parts = dict.fromkeys(PART_COLUMNS, scores) | {"score_n": -scores}
    return pd.DataFrame({"score": scores, "error": "", **parts})


@pytest.mark.parametrize(("n_normals", "n_images"), [(48, 20), (300, 5), (300, 100)])
def test_normals_with_as_many_defects_raise_an_alarm_as_rarely_as_stated(n_normals: int, n_images: int):
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(DRAWS):
        scores = rng.normal(size=n_images)
        scores[: n_images // 2] = 99  # defects
        alarms += shift_p_value(scores, rng.normal(size=n_normals)) < LEVEL
    assert alarms <= DRAWS * LEVEL + 3 * np.sqrt(DRAWS * LEVEL)


@pytest.mark.parametrize(("n_images", "noticed"), [(5, False), (20, True), (100, True)])
def test_a_batch_two_standard_deviations_off_is_noticed_from_twenty_images_on(n_images: int, noticed: bool):
    rng = np.random.default_rng(0)
    found = [shift_p_value(rng.normal(2, size=n_images), rng.normal(size=300)) < LEVEL for _ in range(200)]
    assert (np.mean(found) > 0.6) == noticed


def test_the_score_that_moved_most_is_named():
    rng = np.random.default_rng(0)
    batch = table(rng.normal(2, size=100)).assign(score_a=rng.normal(size=100), score_n=rng.normal(-5, size=100))
    shift = compare_batch(batch, held_out_scores(rng.normal(size=300), np.empty(0)))
    assert shift is not None and shift.above["score_a"] == pytest.approx(0.25, abs=0.1)
    # the normals' S_n are those of the other parts here: high scores of the batch are low normalities
    assert shift.moved in ("score_g", "score_r", "score_n") and "unlike the normals" in shift.describe()


def test_unreadable_images_and_empty_batches_do_not_count():
    rows = table(np.array([5.0])).assign(error="cannot be read", score=np.nan)
    assert compare_batch(rows, held_out_scores(np.arange(9.0), np.empty(0))) is None
