"""Scores of every test sample by every detector."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import ArtefactFile, Cache
from mpfm_kedro.experiments.trials import read_trials, score_trials
from mpfm_kedro.parameters import ComputeParameters


def score_samples(
    runs: pd.DataFrame,
    trials: pd.DataFrame,
    features: Features,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    compute: ComputeParameters,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per trial and test sample, with the four scores of MPFM; and the seconds of every trial."""
    return score_trials(read_trials(trials, runs), features, initial_models | models, cache, device, compute)
