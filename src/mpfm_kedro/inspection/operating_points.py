"""Misses at several false-alarm rates, by class of defect, from known defects that were held out."""

from dataclasses import asdict

import pandas as pd

from mpfm_kedro.inspection.model import HeldOutScores
from mpfm_kedro.inspection.thresholds import choose_threshold, item_scores, miss_rate, percent

RATES = (0.01, 0.02, 0.05, 0.1)
ALL = ""  # classes
LEAST_GAIN = 5  # defects: if a higher rate changed nothing, all would be detected by chance in 1 of 32 cases
MOST_UNUSUAL = 3  # normals that are named


def count_misses(held_out: HeldOutScores, rate: float, confidence: float) -> pd.DataFrame:
    """One row per false-alarm rate and class of defects, first all classes together; empty without known defects.

    Images of one item are one defect, whose score is the largest.
    """
    known = held_out.anomalies
    classes = {ALL: known, **dict(list(known.groupby("defect_class")))} if len(known) else {}
    rows = []
    for wanted in sorted({rate, *RATES}):
        threshold = choose_threshold(held_out.item_scores, wanted, confidence)
        for name, defects in classes.items():
            scores = item_scores(defects["score"], defects["item"].to_numpy())
            missed = asdict(miss_rate(scores, threshold.defective, confidence))
            stated = {"false_alarms": wanted, "guaranteed": threshold.rate_guaranteed, "defect_class": name}
            rows.append(stated | {"missed": missed.pop("rate"), "n_images": len(defects)} | missed)
    return pd.DataFrame(rows)


def name_unusual_normals(held_out: HeldOutScores) -> str:
    """The normals that decide the threshold, in a sentence: one defect among them can hide many."""
    names = held_out.normals.nlargest(MOST_UNUSUAL, "score")["sample_id"]
    return f"Check that the most unusual normals, which decide the threshold, show no defect: {', '.join(names)}."


def advise(misses: pd.DataFrame, rate: float) -> str:
    """A higher false-alarm rate where it pays: the one with the most detected defects beyond its false alarms."""
    if misses.empty:
        return ""
    points = misses[(misses["defect_class"] == ALL) & (misses["false_alarms"] >= rate)].to_dict("records")
    now, best = points[0], min(points, key=lambda point: point["missed"] + point["guaranteed"])
    if now["n_missed"] - best["n_missed"] < LEAST_GAIN:
        return ""
    return (
        f"At {percent(best['guaranteed'])} instead of {percent(now['guaranteed'])} false alarms you would "
        f"miss {percent(best['missed'], 2)} instead of {percent(now['missed'], 2)} of such defects: "
        f"--params=inspection.false_alarm_rate={best['false_alarms']:g}"
    )
