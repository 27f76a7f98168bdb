"""Does the guarantee hold? False-alarm rates that were guaranteed and found, on the test side of a dataset.

    python benchmarks/guarantees.py elpv        # after kedro run --pipelines=features --params=dataset=elpv
    python benchmarks/guarantees.py folder --data-root parts --items       # several images of an item

Each seed fits a model as `kedro run --pipelines=fit` does, on the training side of the general setting alone: the
guarantee rests on training normals, and is compared with the test normals that nothing was fitted to. With ``--items``
each seed also divides the normals anew, by item, no defect is known, and thresholds that rest on items are compared
with thresholds that take each image as an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import GroupShuffleSplit

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.production import ProductionFit, score_held_out
from mpfm_kedro.inspection.thresholds import DEFECTIVE, GOOD, UNCERTAIN, choose_threshold, decide
from mpfm_kedro.parameters import Parameters
from mpfm_kedro.protocol.data import select
from mpfm_kedro.protocol.runs import make_general_runs, make_production_run
from opened_project import UNTRAINED, fit_mpfm, open_project, parser

RATES = (0.005, 0.01, 0.02, 0.05)
DEVICE = torch.device("cpu")


def main() -> None:
    """Fit, compare, print a table in Markdown."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--confidence", type=float, default=0.95)
    arguments.add_argument("--items", action="store_true", help="compare items with images as observations")
    given = arguments.parse_args()
    parameters, compute, (samples, features, images) = open_project(given, "samples", "features", "images")
    if given.items:
        print("| observations | asked for | guaranteed | new images called defective | new items |")
        print("|---|---|---|---|---|")
        table = pd.DataFrame(compare_observations(samples, features, images, parameters, compute, given))
        for (observations, rate), part in table.groupby(["observations", "rate"]):
            shown = (f"{part[name].mean():.1%} (up to {part[name].max():.1%})" for name in ("images", "items"))
            number = f"{part['number'].mean():.0f} {observations}"
            print(f"| {number} | {rate:.1%} | {part['guaranteed'].mean():.1%} | {' | '.join(shown)} |")
        return
    protocol = parameters.protocol.model_copy(update={"n_anomalies": [10], "n_seeds": given.seeds})
    trials, _ = fit_mpfm(make_general_runs(samples, protocol), features, parameters, compute)
    rows = []
    for trial in trials:
        run, fits = trial.run, trials.artefacts(trial)
        fitted = ProductionFit(run, fits, features, samples, images, [])
        calibration, _ = score_held_out(fitted, DEVICE)
        detector = load(fits, DEVICE)
        found = {
            kind: detector.score_samples(select(features, np.array(run[f"test_{kind}"]), [ORIGINAL])).score
            for kind in ("normals", "anomalies")
        }
        unseen = calibration.item_scores
        for rate in RATES:
            threshold = choose_threshold(unseen, rate, given.confidence)
            of_normals, of_anomalies = (decide(found[kind], threshold) for kind in ("normals", "anomalies"))
            rows.append(
                {
                    "rate": rate,
                    "guaranteed": threshold.rate_guaranteed,
                    "found": np.mean(of_normals == DEFECTIVE),
                    "uncertain normals": np.mean(of_normals == UNCERTAIN),
                    "defective": np.mean(of_anomalies == DEFECTIVE),
                    "uncertain": np.mean(of_anomalies == UNCERTAIN),
                    "missed": np.mean(of_anomalies == GOOD),
                    "held-out normals": threshold.n_normals,
                }
            )
    print(as_markdown(pd.DataFrame(rows), len(found["normals"]), given.confidence))


def compare_observations(
    samples: pd.DataFrame, features: Features, images: ImageLoader, parameters: Parameters, compute: Any, given: Any
) -> Iterator[dict[str, Any]]:
    """False alarms among images and items of new items, with items or images as observations."""
    normals = samples[(samples["label"] == 0) & (samples["problem"] == "")]
    for seed in range(given.seeds):
        divided = GroupShuffleSplit(1, test_size=0.25, random_state=seed).split(normals, groups=normals["item"])
        (_, test), *_ = divided
        new = normals.iloc[test]
        known = normals.assign(split="train").drop(new.index)
        for observations in ("items", "images"):
            own, samples = features, known
            if observations == "images":
                samples = known.assign(item=known["sample_id"])
                own = replace(features, index=features.index.assign(item=features.index["sample_id"]))
            trials, _ = fit_mpfm(make_production_run(samples, seed), own, parameters, compute, [UNTRAINED])
            (trial,) = trials
            fits = trials.artefacts(trial)
            calibration, _ = score_held_out(ProductionFit(trial.run, fits, own, samples, images, []), DEVICE)
            rows = select(features, new["sample_id"].to_numpy(), [ORIGINAL])
            score = load(fits, DEVICE).score_samples(rows).score
            for rate in RATES:
                threshold = choose_threshold(calibration.item_scores, rate, given.confidence)
                alarm = pd.Series(score > threshold.defective).groupby(new["item"].to_numpy())
                yield {
                    "observations": observations,
                    "rate": rate,
                    "number": threshold.n_normals,
                    "guaranteed": threshold.rate_guaranteed,
                    "images": (score > threshold.defective).mean(),
                    "items": alarm.any().mean(),
                }


def as_markdown(table: pd.DataFrame, n_test: int, confidence: float) -> str:
    """Means over seeds, with the least and the largest false-alarm rate."""
    lines = [
        f"| asked for | guaranteed ({confidence:.0%}) | found on {n_test} test normals: mean (least to largest) | "
        "normals called uncertain | anomalies called defective | uncertain | good (missed) |",
        "|---|---|---|---|---|---|---|",
    ]
    for rate, own in table.groupby("rate"):
        mean = own.mean()
        shown = f"{mean['found']:.1%} ({own['found'].min():.1%} to {own['found'].max():.1%})"
        shares = " | ".join(f"{mean[name]:.1%}" for name in ("uncertain normals", "defective", "uncertain", "missed"))
        lines.append(f"| {rate:.1%} | {mean['guaranteed']:.2%} | {shown} | {shares} |")
    normals = sorted(set(table["held-out normals"]))
    return "\n".join([*lines, "", f"Held-out normals behind each guarantee: {', '.join(map(str, normals))}."])


if __name__ == "__main__":
    main()
