"""The three stages in which MPFM is fitted. Each node plans the fits of its stage; the dataset computes them."""

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.mpfm.specification import calibration_parameters, prototype_parameters, training_parameters
from mpfm_kedro.parameters import ComputeParameters, PrototypeParameters, RepairParameters, TrainingParameters
from mpfm_kedro.protocol.fits import Plan, plan_stage
from mpfm_kedro.protocol.trials import Trials, plan_trials


def initialise_prototypes(
    runs: pd.DataFrame,
    features: Features,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> Plan:
    """K-means++ groups, whitening and prototypes of patches; no anomaly is read, so many trials share them."""
    return plan_stage(
        "prototypes",
        plan_trials(runs, repairs),
        features,
        compute,
        lambda method: prototype_parameters(
            method.changed("prototypes", prototypes), method.changed("repairs", repairs)
        ),
    )


def train_mpfm(
    trials: Trials,
    features: Features,
    training: TrainingParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> Plan:
    """The joint objective of flow, mutual information and four modules, from the prototypes."""
    return plan_stage(
        "training",
        list(trials),
        features,
        compute,
        lambda method: (
            training_parameters(method.changed("training", training), method.changed("repairs", repairs))
            if method.trained
            else None
        ),
    )


def calibrate_scores(
    trials: Trials,
    features: Features,
    training: TrainingParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> Plan:
    """From four scores to one: calibration within groups of normals, weights by left-out evidence."""
    return plan_stage(
        "calibration",
        list(trials),
        features,
        compute,
        lambda method: calibration_parameters(
            method.changed("training", training), method.changed("repairs", repairs), method.step_0
        ),
    )
