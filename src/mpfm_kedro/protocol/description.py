"""What the fits of MPFM tell about themselves: modes tried, training curves, groups of normals, sampled features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.evaluation.columns import PART_COLUMNS, ours
from mpfm_kedro.protocol.trials import Trial, Trials

if TYPE_CHECKING:
    from mpfm_kedro.detectors.base import Artefact


def trials_of_mpfm(models: Trials) -> list[Trial]:
    """The trials of MPFM; of the one that knows no anomaly, where there was none to learn from."""
    return list(models.of(ours(models.table["method"])))


def tabulate_modes(models: Trials) -> pd.DataFrame:
    """How the number of modes was chosen: one row per run and number tried."""
    return pd.DataFrame(
        [{"run": run} | row for run, fit in _details(models, "prototypes") for row in fit["modes_tried"]]
    )


def tabulate_history(models: Trials) -> pd.DataFrame:
    """The seven terms of the objective along training: one row per run and epoch."""
    rows = [{"run": run} | row for run, fit in _details(models, "training") for row in fit["history"]]
    return pd.DataFrame(rows, columns=None if rows else ["run", "epoch"])


def tabulate_weights(models: Trials) -> pd.DataFrame:
    """What each score counts in each mode of each run that knows anomalies."""
    known = [trial for trial in trials_of_mpfm(models) if trial.run["known_anomalies"]]
    stored = (models.memory.load(trial.fits["calibration"]) for trial in known)
    return pd.DataFrame([row for fit in stored for row in describe_weights(fit)])


def describe_weights(calibration: Artefact) -> list[dict[str, Any]]:
    """What each of the scores that are added counts, in each mode of each backbone."""
    from mpfm_kedro.detectors.mpfm.detector import load_calibrations  # with torch, which is slow to import

    rows, added = [], [f"score_{name}" for name in calibration.details["parameters"]["scores"]]
    for number, fitted in enumerate(load_calibrations(calibration)):
        for mode, weights in enumerate(fitted.part_weights.T.tolist()):
            counts = dict(zip(PART_COLUMNS, weights, strict=True))
            rows.append({"backbone": number, "mode": mode} | {name: counts[name] for name in added})
    return rows


def typical_normals(models: Trials, most: int) -> list[tuple[int, list[str]]]:
    """The groups of the first run's normals, the largest first: size and most typical samples of each."""
    first = trials_of_mpfm(models)[0]
    tensors = models.memory.load(first.fits["prototypes"]).tensors
    group, offset = (tensors[name].numpy() for name in ("group", "held_out.offset"))
    energy = (offset**2).mean(1)
    table = pd.DataFrame({"group": group, "energy": energy, "sample": first.run["train_normals"]})
    groups = [(len(part), part.nsmallest(most, "energy")["sample"].tolist()) for _, part in table.groupby("group")]
    return sorted(groups, key=lambda group: -group[0])


def sample_features(models: Trials, features: Features) -> pd.DataFrame:
    """Features of normals drawn by the first run's model beside real ones, along the real ones' two main directions."""
    from mpfm_kedro.detectors.mpfm.reverse import compare_with_samples  # with torch, which is slow to import

    first = trials_of_mpfm(models)[0]
    rows = features.rows(first.run["train_normals"])
    return compare_with_samples(models.artefacts(first), features.store.pooled[rows], first.run["seed"])


def _details(models: Trials, stage: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run and details of one stage of MPFM."""
    for trial in trials_of_mpfm(models):
        if stage in trial.fits:
            yield trial.run["run"], models.memory.details(trial.fits[stage])
