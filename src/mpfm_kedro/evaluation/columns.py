"""Columns of the tables between runs and reports, stated once, and the names of MPFM in them.

A cell is what a column of a printed table shows: dataset, category, setting, known class and number M of known
anomalies. A trial is one method on one run; run names are unique within a setting.
"""

from collections.abc import Iterable

TRAINED, UNTRAINED = "MPFM", "MPFM, no anomaly known"
AT_STEP_0, AS_PRINTED = "MPFM, step 0", "MPFM as printed"


def ours(methods: Iterable[str]) -> str:
    """The name of MPFM among these methods: untrained, where there was no anomaly to learn from."""
    found = set(methods)
    return next((name for name in (TRAINED, AS_PRINTED) if name in found), UNTRAINED)


EXPERIMENT = ["dataset", "setting"]
CELL = ["dataset", "category", "setting", "known_class", "n_anomalies"]
CELL_METHOD = [*CELL, "method"]
RUN = ["run", "dataset", "category", "setting", "known_class", "n_anomalies", "seed"]
TRIAL = ["setting", "run", "method"]

PART_COLUMNS = ["score_g", "score_a", "score_r", "score_n"]
SCORES = [*RUN, "method", "sample", "label", "score", *PART_COLUMNS, "mode"]
COSTS = [*TRIAL, "seconds"]

PIXEL_MEASURES = ["pixel_auroc", "aupro", "pixel_f1"]  # where there are masks; other tables lack these columns
RECALLS = {"recall_1": 0.01, "recall_5": 0.05}  # and the share of false alarms
