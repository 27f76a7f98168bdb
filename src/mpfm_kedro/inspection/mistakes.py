"""Mistakes of a setting: the anomalies that were missed and the false alarms, with the effect of a threshold."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from mpfm_kedro.detectors.mpfm.detector import MPFMDetector, load
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.heat_maps import overlay, scale, to_jpeg
from mpfm_kedro.inspection.likeness import likeness
from mpfm_kedro.inspection.production import MAX_IN_GALLERY, ProductionFit, score_held_out, spread, standardised
from mpfm_kedro.inspection.thresholds import DEFECTIVE, choose_threshold, decide
from mpfm_kedro.protocol.data import select

MISSED, FALSE_ALARM = "missed", "false alarm"
SHOWN = 4  # of each class, and false alarms
SIDE = 320
COLUMNS = ["run", "known_class", "n_anomalies", "kind", "defect_class"]
COLUMNS += ["sample", "score", "likeness", "decision", "image"]
POINTS = ["run", "known_class", "n_anomalies", "guaranteed", "false_alarms", "precision", "recall"]


def find_mistakes(
    fit: ProductionFit, scores: pd.DataFrame, rate: float, confidence: float, device: torch.device
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The worst misses of each class and the worst false alarms of a run, and precision and recall at a threshold.

    ``scores`` has sample, label and score of the test samples of the run that MPFM was fitted for.
    """
    held_out, limits = score_held_out(fit, device)
    threshold = choose_threshold(held_out.item_scores, rate, confidence)
    rows = fit.samples.set_index("sample_id").loc[scores["sample"]]
    table = scores[["sample", "label", "score"]].assign(
        defect_class=rows["defect_class"].to_numpy(), item=rows["item"].to_numpy()
    )
    table["decision"] = decide(table["score"], threshold)
    chosen = _worst(table)
    detector = load(fit.fits, device)
    rows_of_chosen = select(fit.features, chosen["sample"].to_numpy(), [ORIGINAL])
    positions, sizes = detector.position_scores(rows_of_chosen), fit.padded_sizes(chosen["sample"].tolist())
    heat_maps = scale(smooth_maps(positions, sizes=sizes), *limits)
    files = rows.loc[chosen["sample"], ["path", "crop", "pixel_range"]].to_numpy()
    images = [to_jpeg(overlay(fit.images.read(*file), heat), SIDE) for file, heat in zip(files, heat_maps, strict=True)]
    named = {name: fit.run[name] for name in ("run", "known_class", "n_anomalies")}
    chosen = chosen.assign(image=images, likeness=_likeness(chosen["sample"].tolist(), fit, detector), **named)
    return chosen[COLUMNS], named | operating_point(table, threshold.rate_guaranteed)


def _likeness(sample_ids: list[str], fit: ProductionFit, detector: MPFMDetector) -> np.ndarray:
    """The likeness of some samples to the known anomalies of a run, as a production model of it would find it."""
    learned = [spread(fit.run[name], MAX_IN_GALLERY) for name in ("train_normals", "known_anomalies")]
    z = standardised([*sample_ids, *learned[0], *learned[1]], fit, detector)
    return likeness(*z.split([len(sample_ids), *map(len, learned)])).numpy()


def _worst(table: pd.DataFrame) -> pd.DataFrame:
    """The anomalies of each class with the lowest scores, and the normals with the highest."""
    anomalies = table[table["label"] == 1].sort_values("score").groupby("defect_class").head(SHOWN)
    normals = table[table["label"] == 0].sort_values("score", ascending=False).head(SHOWN)
    found = pd.concat([anomalies.assign(kind=MISSED), normals.assign(kind=FALSE_ALARM)])
    return found.sort_values(["kind", "defect_class"], kind="stable", ignore_index=True)


def operating_point(table: pd.DataFrame, guaranteed: float) -> dict[str, float]:
    """The effect of the threshold on the test items, each with all of its images; undefined values are NaN."""
    items = (table["decision"] == DEFECTIVE).groupby([table["label"], table["item"]]).any()
    defective, anomaly = items.to_numpy(), items.index.get_level_values("label") == 1
    hits = float((defective & anomaly).sum())
    return {
        "guaranteed": guaranteed,
        "false_alarms": float(defective[~anomaly].mean()),
        "precision": hits / defective.sum() if defective.any() else np.nan,
        "recall": hits / anomaly.sum() if anomaly.any() else np.nan,
    }
