"""Misses by rate and class, and when a higher rate is advised."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.inspection.model import HeldOutScores
from mpfm_kedro.inspection.operating_points import ALL, advise, count_misses, name_unusual_normals
from mpfm_kedro.inspection.thresholds import percent
from production_models import held_out_scores


def scores(shift: float, n: int = 400, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, size=n)


def test_misses_are_counted_at_every_rate_and_in_every_class():
    classes = ["scratch"] * 30 + ["spot"] * 10
    defects = np.concatenate([np.linspace(1, 4, 30), np.full(10, 5.0)])
    held_out = held_out_scores(scores(0, 2000), defects, classes)
    misses = count_misses(held_out, 0.03, 0.95).set_index(["false_alarms", "defect_class"])
    assert list(misses.index.levels[0]) == [0.01, 0.02, 0.03, 0.05, 0.1]
    for rate in (0.01, 0.1):
        limit = np.sort(held_out.item_scores)[-int(2000 * rate)]
        near = (defects[:30] <= limit).mean()
        assert misses.loc[(rate, "scratch"), "missed"] == pytest.approx(near, abs=0.15)
        assert misses.loc[(rate, "spot"), "n_missed"] == 0
    whole = misses.xs(ALL, level="defect_class")
    assert (whole["n_anomalies"] == 40).all() and whole["missed"].is_monotonic_decreasing
    assert (whole["low"] <= whole["missed"]).all() and (whole["missed"] <= whole["high"]).all()


def test_a_higher_rate_is_advised_where_it_pays():
    held_out = held_out_scores(scores(0, 2000), np.concatenate([scores(6, 60), scores(2.0, 40)]))
    said = advise(count_misses(held_out, 0.01, 0.95), 0.01)
    assert said.startswith(("At 5 % instead of 1 %", "At 10 % instead of 1 %")) and "false_alarm_rate=0." in said


@pytest.mark.parametrize(
    ("defects", "n_normals"),
    [
        pytest.param(np.full(50, 9.0), 2000, id="all are detected anyway"),
        pytest.param(np.full(50, -1.0), 2000, id="none is detected at any rate"),
        pytest.param(np.array([2.0, 2.0, 9.0]), 2000, id="too few known defects"),
        pytest.param(np.full(50, 2.0), 20, id="normals too few for other thresholds"),
    ],
)
def test_otherwise_nothing_is_advised(defects: np.ndarray, n_normals: int):
    assert advise(count_misses(held_out_scores(scores(0, n_normals), defects), 0.01, 0.95), 0.01) == ""


def test_without_known_defects_there_is_no_row():
    misses = count_misses(held_out_scores(scores(0), np.empty(0)), 0.01, 0.95)
    assert misses.empty and advise(misses, 0.01) == "" and isinstance(misses, pd.DataFrame)


def test_photos_of_one_item_are_one_defect():
    """Nine photos of one scratched part and three parts with spots; an item counts by its largest score."""
    defects = np.array([*[-1.0] * 8, 5.0, 5.0, -1.0, -1.0])
    table = held_out_scores(scores(0, 2000), defects, ["scratch"] * 9 + ["spot"] * 3).table
    held_out = HeldOutScores(table.assign(item=table["item"].where(table["defect_class"] != "scratch", "part")))
    misses = count_misses(held_out, 0.01, 0.95).query("false_alarms == 0.01").set_index("defect_class")
    assert misses["n_anomalies"].to_dict() == {ALL: 4, "scratch": 1, "spot": 3}
    assert misses["n_images"].to_dict() == {ALL: 12, "scratch": 9, "spot": 3}
    assert misses["n_missed"].to_dict() == {ALL: 2, "scratch": 0, "spot": 2}
    said = held_out.describe(held_out.threshold(0.01, 0.95))
    assert "2 of 4 known defective items (12 images) are missed: 50 %" in said
    alone = held_out_scores(scores(0, 2000), defects)
    assert "10 of 12 known defects are missed" in alone.describe(alone.threshold(0.01, 0.95))


def test_photos_of_one_item_are_no_reason_for_an_advice():
    table = held_out_scores(scores(0, 2000), np.concatenate([scores(6, 60), scores(2.0, 40)])).table
    assert advise(count_misses(HeldOutScores(table), 0.01, 0.95), 0.01)
    one = table.assign(item=table["item"].where((table["label"] == 0) | (table["score"] > 4), "part"))
    assert advise(count_misses(HeldOutScores(one), 0.01, 0.95), 0.01) == ""


def test_the_normals_that_decide_the_threshold_are_named():
    scores = held_out_scores(np.array([0.1, 9.0, 0.3, 4.0, 0.2, 5.0]), np.array([7.0]))
    assert name_unusual_normals(scores).endswith("show no defect: 0-1, 0-5, 0-3.")


@pytest.mark.parametrize(("share", "text"), [(1.0, "100 %"), (0.4444, "44 %"), (0.00123, "0.12 %"), (0.0, "0 %")])
def test_shares_are_written_without_exponents(share: float, text: str):
    assert percent(share, 2) == text


def test_rarity_is_capped_by_the_number_of_good_images():
    held_out = held_out_scores(np.arange(100.0), np.array([3.0]))
    assert held_out.describe_parts({"g": 1e9, "a": 97.0, "r": 50.0, "n": -1e9}) == {
        "g": "higher than any of 100 good images",
        "a": "about 1 in 33 good images scores so high",
        "r": "about 1 in 2 good images scores so high",
        "n": "lower than any of 100 good images",
    }
    assert held_out.describe_parts({"a": 40.0, "n": 99.0}) == {
        "a": "most good images score so high",
        "n": "most good images score so low",
    }
