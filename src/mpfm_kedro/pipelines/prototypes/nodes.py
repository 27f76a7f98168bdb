"""Everything that knows no anomaly: modes, prototypes of patches, references fitted on normals alone."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import ArtefactFile, Cache
from mpfm_kedro.experiments.trials import fit_pieces, read_trials
from mpfm_kedro.parameters import ComputeParameters


def initialise_prototypes(
    runs: pd.DataFrame, trials: pd.DataFrame, features: Features, cache: Cache, device: str, compute: ComputeParameters
) -> dict[str, ArtefactFile]:
    """The pieces of every trial that learn from normals alone; runs with the same normals share them."""
    return fit_pieces(read_trials(trials, runs), features, cache, None, "Prototypes", device, compute)
