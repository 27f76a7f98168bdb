"""Images like a known defect: a copy is never good, unless normals look the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mpfm_kedro.inspection.likeness import likeness
from mpfm_kedro.inspection.thresholds import choose_threshold, decide

NORMALS = torch.randn(300, 20, generator=torch.Generator().manual_seed(0))


def threshold_of(known: torch.Tensor) -> float:
    same = torch.eye(len(NORMALS), dtype=torch.bool)
    return choose_threshold(likeness(NORMALS, NORMALS, known, same).numpy(), 0.01, 0.95).defective


def test_a_copy_of_a_known_defect_is_more_alike_than_any_normal():
    known = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))  # not unusual in any direction
    found = likeness(known + 0.01, NORMALS, known)
    assert (found > threshold_of(known)).all() and (likeness(known, NORMALS, known) > 0.999).all()


def test_where_a_normal_looks_the_same_a_known_defect_is_not_told_from_it():
    known = NORMALS[:20].clone()  # as wrong labels would
    assert (likeness(known, NORMALS, known) <= threshold_of(known)).all()


def test_new_normals_are_rarely_alike():
    known = torch.randn(10, 20, generator=torch.Generator().manual_seed(1))
    new = torch.randn(5000, 20, generator=torch.Generator().manual_seed(2))
    assert (likeness(new, NORMALS, known) > threshold_of(known)).float().mean() < 0.02


def test_without_known_defects_it_is_zero():
    assert likeness(NORMALS, NORMALS, NORMALS[:0]).eq(0).all()


@pytest.mark.parametrize(
    ("score", "alike", "decision"), [(0, 0.7, "uncertain"), (0, 0.6, "good"), (9, 0.7, "defective")]
)
def test_an_image_that_is_alike_is_not_good(score: float, alike: float, decision: str):
    threshold = replace(choose_threshold(np.linspace(-1, 1, 1000), 0.01, 0.95), alike=0.6)
    assert decide([score], threshold, [alike]) == [decision]
