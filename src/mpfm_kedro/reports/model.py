"""The card of a production model as a page."""

import json

import pandas as pd

from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.inspection.collection import LABELS
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.inspection.operating_points import ALL
from mpfm_kedro.inspection.thresholds import choose_threshold, least_normals, percent
from mpfm_kedro.reports.pages import render
from mpfm_kedro.reports.tables import RECALL_TITLES

RATES = (0.001, 0.005, 0.01, 0.02, 0.05)
NOTHING = 0.005  # a weight below it is written as 0


def write_card(model: Model) -> str:
    """What a model is, what it was made from and what it guarantees."""
    card, normals = model.card, model.calibration.item_scores
    confidence = card["threshold"]["confidence"]
    return render(
        "card.html",
        title=f"Model card: {' '.join(filter(None, [card['dataset'], card['category']]))}",
        card=card,
        thresholds={rate: choose_threshold(normals, rate, confidence) for rate in RATES},
        needed={rate: least_normals(rate, confidence) for rate in RATES},
        misses=_misses(pd.DataFrame(card["misses"])),
        weights=pd.DataFrame(card["score_weights"]).round(2),
        n_normals=len(normals),
        measures={"AUC": "auc", "AP": "ap"} | RECALL_TITLES,
        labels={number: name for name, number in LABELS.items()},
        all_of_it=json.dumps({name: card[name] for name in card if name != "files"}, indent=1, ensure_ascii=False),
    )


def name_uncounted(weights: pd.DataFrame, least: float = 0.0) -> str:
    """The scores that count nothing in more than this share of the rows, in a sentence; a row is a mode of a model."""
    nothing, n = (weights.filter(PART_COLUMNS) < NOTHING).sum(), len(weights)
    found = nothing[nothing > least * n].items()
    said = [f"{name} counts nothing" + f" in {number} of {n} modes" * (number < n) for name, number in found]
    return f"{', '.join(said)}: it does not tell the held-out known defects from normals." if said else ""


def _misses(misses: pd.DataFrame) -> pd.DataFrame:
    """One row per class of defects, one column per false-alarm rate."""
    if misses.empty:
        return misses
    cells = misses["missed"].map(percent) + " (" + misses[["low", "high"]].map(percent).agg(" to ".join, axis=1) + ")"
    rates = "missed at " + misses["false_alarms"].map(percent)
    images = " (" + misses["n_images"].map("{:,} images".format) + ")"
    number = misses["n_anomalies"].map("{:,}".format) + images.where(misses["n_images"] > misses["n_anomalies"], "")
    named = misses.assign(defects=number, cell=cells, rate=rates)
    named["class"] = named["defect_class"].replace(ALL, "all")
    return named.pivot_table("cell", ["class", "defects"], "rate", aggfunc="first", sort=False).reset_index()
