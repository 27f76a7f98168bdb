"""Is the promise kept? False-alarm rates that were promised and found, on the test side of a dataset.

    python benchmarks/promises.py elpv        # after kedro run --pipelines=features --params=dataset=elpv

Each seed fits a model as `kedro run --pipelines=fit` does, on the training side of the general setting alone: the
promise rests on training normals, and is compared with the test normals that nothing was fitted to.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.experiments.protocol import make_general_runs, records
from mpfm_kedro.experiments.run_data import select, training_data
from mpfm_kedro.experiments.trials import fit_pieces, plan_trials, read_trials
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.inspection.production import Fitted, calibrate
from mpfm_kedro.inspection.thresholds import DEFECTIVE, GOOD, UNCERTAIN, decide, item_scores, promise
from mpfm_kedro.pipelines.fit.nodes import production_specifications
from project import open_project, parser

RATES = (0.005, 0.01, 0.05)
DEVICE = torch.device("cpu")


def main() -> None:
    """Fit, compare, print a table in Markdown."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--confidence", type=float, default=0.95)
    given = arguments.parse_args()
    parameters, compute, loaded = open_project(given, "samples", "features", "images", "model_cache")
    samples, features, images, cache = loaded
    groups = parameters.prototypes, parameters.repairs, parameters.training
    runs = make_general_runs(samples, 10, given.seeds)
    (specification,) = production_specifications(runs, *groups, parameters.backbone)
    trials = read_trials(plan_trials(runs, [specification]), runs)
    initial = fit_pieces(trials, features, cache, None, "Prototypes", "cpu", compute)
    models = initial | fit_pieces(trials, features, cache, initial, "Training", "cpu", compute)
    rows = []
    for trial, run in zip(trials, records(runs), strict=True):
        pieces = {piece.name: models[trial.piece_name(piece)].load() for piece in specification.pieces}
        fitted = Fitted(run, pieces, features, samples, images, [])
        calibration, _ = calibrate(fitted, training_data(run, features), DEVICE)
        detector = load(pieces, DEVICE)
        found = {
            kind: detector.score_samples(select(features, np.array(run[f"test_{kind}"]), [ORIGINAL])).score
            for kind in ("normals", "anomalies")
        }
        unseen = item_scores(calibration.normal_scores, calibration.normal_items)
        for rate in RATES:
            promised = promise(unseen, rate, given.confidence)
            of_normals, of_anomalies = (decide(found[kind], promised) for kind in ("normals", "anomalies"))
            rows.append(
                {
                    "rate": rate,
                    "promised": promised.rate_promised,
                    "found": np.mean(of_normals == DEFECTIVE),
                    "uncertain normals": np.mean(of_normals == UNCERTAIN),
                    "defective": np.mean(of_anomalies == DEFECTIVE),
                    "uncertain": np.mean(of_anomalies == UNCERTAIN),
                    "missed": np.mean(of_anomalies == GOOD),
                    "unseen normals": promised.n_normals,
                }
            )
    print(as_markdown(pd.DataFrame(rows), len(found["normals"]), given.confidence))


def as_markdown(table: pd.DataFrame, n_test: int, confidence: float) -> str:
    """Means over seeds, with the least and the largest false-alarm rate."""
    lines = [
        f"| asked for | promised ({confidence:.0%}) | found on {n_test} test normals: mean (least to largest) | "
        "normals called uncertain | anomalies called defective | uncertain | good (missed) |",
        "|---|---|---|---|---|---|---|",
    ]
    for rate, own in table.groupby("rate"):
        mean = own.mean()
        shown = f"{mean['found']:.1%} ({own['found'].min():.1%} to {own['found'].max():.1%})"
        shares = " | ".join(f"{mean[name]:.1%}" for name in ("uncertain normals", "defective", "uncertain", "missed"))
        lines.append(f"| {rate:.1%} | {mean['promised']:.2%} | {shown} | {shares} |")
    normals = sorted(set(table["unseen normals"]))
    return "\n".join([*lines, "", f"Unseen normals behind each promise: {', '.join(map(str, normals))}."])


if __name__ == "__main__":
    main()
