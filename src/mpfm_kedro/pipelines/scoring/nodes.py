"""Scores of every test sample by every detector, and how well it shows where defects are."""

from __future__ import annotations

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import ArtefactFile, Cache
from mpfm_kedro.experiments.localisation import measure_localisation
from mpfm_kedro.experiments.trials import read_trials, score_trials
from mpfm_kedro.images.loading import ImageLoader
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


def measure_pixels(
    runs: pd.DataFrame,
    trials: pd.DataFrame,
    samples: pd.DataFrame,
    images: ImageLoader,
    features: Features,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    compute: ComputeParameters,
) -> pd.DataFrame:
    """Pixel AUROC, AUPRO and pixel F1: one row per trial whose detector has heat maps; none without masks."""
    fitted = initial_models | models
    return measure_localisation(read_trials(trials, runs), samples, images, features, fitted, cache, device, compute)
