"""Precision and recall at a threshold."""

import pandas as pd
import pytest

from mpfm_kedro.inspection.mistakes import operating_point


def test_an_item_counts_once_and_is_defective_if_any_of_its_images_is():
    rows = [(0, "a", "defective"), (0, "a", "good"), (0, "b", "good"), (0, "b", "uncertain"), (0, "c", "good")]
    rows += [(1, "d", "good"), (1, "d", "defective"), (1, "d", "good"), (1, "a", "good")]
    point = operating_point(pd.DataFrame(rows, columns=["label", "item", "decision"]), 0.1)
    assert point == pytest.approx({"guaranteed": 0.1, "false_alarms": 1 / 3, "precision": 1 / 2, "recall": 1 / 2})
