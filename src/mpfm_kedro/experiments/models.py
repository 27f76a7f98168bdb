"""What the pieces of MPFM tell about themselves: modes tried, training curves, sampled features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import ArtefactFile
from mpfm_kedro.experiments.columns import ours
from mpfm_kedro.experiments.protocol import records


def tabulate_modes(initial_models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """How the number of modes was chosen: one row per run and number tried."""
    rows = [{"run": run} | row for run, found in _own(initial_models, "prototypes") for row in found["modes_tried"]]
    return pd.DataFrame(rows)


def typical_normals(
    runs: pd.DataFrame, initial_models: dict[str, ArtefactFile], most: int
) -> list[tuple[int, list[str]]]:
    """The groups of the first run's normals, the largest first: size and most typical samples of each."""
    run = records(runs)[0]
    tensors = next(file for name, file in initial_models.items() if name.split("|")[::2] == [run["run"], "prototypes"])
    group, offset = (tensors.load().tensors[name].numpy() for name in ("group", "held_out.offset"))
    table = pd.DataFrame({"group": group, "energy": (offset**2).mean(1), "sample": run["train_normals"]})
    found = [(len(own), own.nsmallest(most, "energy")["sample"].tolist()) for _, own in table.groupby("group")]
    return sorted(found, key=lambda each: -each[0])


def tabulate_history(models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """The seven terms of the objective along training: one row per run and epoch."""
    rows = [{"run": run} | row for run, found in _own(models, "training") for row in found["history"]]
    return pd.DataFrame(rows, columns=None if rows else ["run", "epoch"])


def sample_features(
    runs: pd.DataFrame, features: Features, initial_models: dict[str, ArtefactFile], models: dict[str, ArtefactFile]
) -> pd.DataFrame:
    """Features of normals drawn by the first run's model beside real ones, along the real ones' two main directions."""
    from mpfm_kedro.detectors.mpfm.reverse import compare_with_samples  # with torch, which is slow to import

    run = records(runs)[0]
    fitted = initial_models | models
    method = ours(name.split("|")[1] for name in fitted)
    names = {name: f"{run['run']}|{method}|{name}" for name in ("prototypes", "training")}
    pieces = {name: fitted[full].load() for name, full in names.items() if full in fitted}
    rows = features.rows(run["train_normals"])
    return compare_with_samples(pieces, features.store.pooled[rows], run["seed"])


def _own(models: dict[str, ArtefactFile], piece: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run and details of each of MPFM's pieces of this name."""
    found = ours(name.split("|")[1] for name in models)
    for name, artefact in models.items():
        run, method, own = name.split("|")
        if (method, own) == (found, piece):
            yield run, artefact.details
