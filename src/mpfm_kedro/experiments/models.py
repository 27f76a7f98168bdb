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
    rows = [{"run": run} | row for run, found in _own(initial_models, "closed_form") for row in found["modes_tried"]]
    return pd.DataFrame(rows)


def tabulate_history(models: dict[str, ArtefactFile]) -> pd.DataFrame:
    """The losses along training by run: of the heads at each tenth of the steps, of the flow at each epoch."""
    rows = [
        {"run": run, "piece": piece} | row
        for piece in ("heads", "flow")
        for run, found in _own(models, piece)
        for row in found["history"]
    ]
    return pd.DataFrame(rows, columns=None if rows else ["run", "piece", "epoch"])


def sample_features(
    runs: pd.DataFrame, features: Features, initial_models: dict[str, ArtefactFile], models: dict[str, ArtefactFile]
) -> pd.DataFrame:
    """Features of normals drawn by the first run's model beside real ones, along the real ones' two main directions."""
    from mpfm_kedro.detectors.mpfm.reverse import compare_with_samples  # with torch, which is slow to import

    run = records(runs)[0]
    fitted = initial_models | models
    method = ours(name.split("|")[1] for name in fitted)
    names = {name: f"{run['run']}|{method}|{name}" for name in ("closed_form", "flow")}
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
