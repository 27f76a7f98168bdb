"""The card of a production model as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mpfm_kedro.inspection.collection import LABELS
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.inspection.operating_points import ALL
from mpfm_kedro.inspection.thresholds import choose_threshold, least_normals, percent
from mpfm_kedro.reports.pages import render
from mpfm_kedro.reports.tables import write_mean

RATES = (0.001, 0.005, 0.01, 0.02, 0.05)


def write_card(model: Model) -> str:
    """What a model is, what it was made from and what it guarantees."""
    card = model.card
    return render(
        "card.html",
        title=f"Model card: {' '.join(filter(None, [card['dataset'], card['category']]))}",
        card=card,
        thresholds=_thresholds(model),
        misses=_misses(pd.DataFrame(card["misses"])),
        n_normals=len(model.calibration.item_scores),
        labels={number: name for name, number in LABELS.items()},
        evaluation=_evaluation(card["evaluation"]),
        all_of_it=json.dumps({name: card[name] for name in card if name != "files"}, indent=1, ensure_ascii=False),
    )


def _thresholds(model: Model) -> pd.DataFrame:
    normals = model.calibration.item_scores
    confidence = model.card["threshold"]["confidence"]
    rows = []
    for rate in RATES:
        found = choose_threshold(normals, rate, confidence)
        needed = f"no: {least_normals(rate, confidence):,} held-out normals are needed"
        rows.append(
            {
                "rate": percent(rate),
                "achievable": "yes" if found.is_achievable else needed,
                "guaranteed": percent(found.rate_guaranteed),
                "on average": percent(found.rate_expected),
                "defective above": f"{found.defective:.3f}",
                "good up to": "–" if found.good is None else f"{found.good:.3f}",
            }
        )
    return pd.DataFrame(rows)


def _misses(misses: pd.DataFrame) -> pd.DataFrame:
    """One row per class of defects, one column per false-alarm rate."""
    if misses.empty:
        return misses
    cells = misses["missed"].map(percent) + " (" + misses[["low", "high"]].map(percent).agg(" to ".join, axis=1) + ")"
    rates = "missed at " + misses["false_alarms"].map(percent)
    named = misses.rename(columns={"defect_class": "class", "n_anomalies": "defects"}).assign(cell=cells, rate=rates)
    named["class"] = named["class"].replace(ALL, "all")
    return named.pivot_table("cell", ["class", "defects"], "rate", aggfunc="first", sort=False).reset_index()


def _evaluation(evaluation: Mapping[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """One row per setting, method and cell."""
    rows = []
    for setting, summary in evaluation.items():
        for row in summary:
            cell = [row["method"], row["category"], row["known_class"], f"M{row['n_anomalies']}"]
            measures = {name: write_mean(row, name.lower()) or "undefined" for name in ("AUC", "AP")}
            rows.append({"setting": setting, "method and data": ", ".join(filter(None, cell)), **measures})
    return pd.DataFrame(rows)
