"""Scores of every test sample, and how well the heat maps show where defects are."""

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import ComparisonParameters, ComputeParameters
from mpfm_kedro.protocol.fits import Plan
from mpfm_kedro.protocol.scores import plan_scores
from mpfm_kedro.protocol.trials import Trials, list_trials


def score_images(
    models: Trials, features: Features, samples: pd.DataFrame, images: ImageLoader, compute: ComputeParameters
) -> tuple[Plan, Plan, Plan]:
    """Scores of MPFM, its pixel measures where there are masks, and the seconds of each trial."""
    return plan_scores(list(models), features, samples, images, compute)


def score_compared(
    runs: pd.DataFrame,
    models: Trials,
    features: Features,
    samples: pd.DataFrame,
    images: ImageLoader,
    comparison: ComparisonParameters,
    compute: ComputeParameters,
) -> tuple[Plan, Plan, Plan]:
    """The same with baselines and references, each of which is fitted and scored in one task."""
    trials = [*models, *(trial for trial in list_trials(runs) if not trial.method.mpfm)]
    return plan_scores(trials, features, samples, images, compute, comparison.steps)
