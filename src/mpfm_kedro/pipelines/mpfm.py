"""The three stages in which MPFM is fitted. Each node plans the fits of its stage; the dataset computes them."""

from typing import Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.mpfm.specification import calibration_parameters, prototype_parameters, training_parameters
from mpfm_kedro.parameters import ComputeParameters, PrototypeParameters, RepairParameters, TrainingParameters
from mpfm_kedro.protocol.fits import Plan, plan_stage
from mpfm_kedro.protocol.methods import Method
from mpfm_kedro.protocol.trials import Trials, plan_trials


def initialise_prototypes(
    runs: pd.DataFrame,
    features: Features,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> Plan:
    """K-means++ groups, whitening and prototypes of patches; no anomaly is read, so many trials share them."""

    def chosen(method: Method) -> dict[str, Any]:
        return prototype_parameters(method.changed("prototypes", prototypes), method.changed("repairs", repairs))

    return plan_stage("prototypes", plan_trials(runs, repairs), features, compute, chosen)


def train_mpfm(
    trials: Trials,
    features: Features,
    training: TrainingParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> Plan:
    """The joint objective of flow, mutual information and four modules, from the prototypes."""

    def chosen(method: Method) -> dict[str, Any] | None:
        changed = method.changed("training", training), method.changed("repairs", repairs)
        return training_parameters(*changed) if method.trained else None

    return plan_stage("training", list(trials), features, compute, chosen)


def calibrate_scores(
    trials: Trials,
    features: Features,
    training: TrainingParameters,
    repairs: RepairParameters,
    compute: ComputeParameters,
) -> Plan:
    """From four scores to one: calibration within groups of normals, weights by left-out evidence."""

    def chosen(method: Method) -> dict[str, Any]:
        changed = method.changed("training", training), method.changed("repairs", repairs)
        return calibration_parameters(*changed, method.step_0)

    return plan_stage("calibration", list(trials), features, compute, chosen)
