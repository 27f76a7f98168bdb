"""Everything that learns from known anomalies: the trained and calibrated models, the baselines."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import ArtefactFile, Cache
from mpfm_kedro.experiments.trials import fit_pieces, read_trials
from mpfm_kedro.parameters import ComputeParameters


def train_detectors(
    runs: pd.DataFrame,
    trials: pd.DataFrame,
    features: Features,
    initial_models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    compute: ComputeParameters,
) -> dict[str, ArtefactFile]:
    """The pieces of every trial that learn from known anomalies, from the models before training."""
    return fit_pieces(read_trials(trials, runs), features, cache, initial_models, "Training", device, compute)
