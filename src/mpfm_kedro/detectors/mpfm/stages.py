"""The stages of a fit, each from what is stored of those before: prototypes, joint training, calibration."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import (
    SCORES,
    STEP_0,
    Calibrated,
    Evidence,
    PlainSum,
    SoftCalibration,
    counted_scores,
    fit_weights,
)
from mpfm_kedro.detectors.mpfm.closed_form import CrossFit, initialise
from mpfm_kedro.detectors.mpfm.rounds import assign_folds
from mpfm_kedro.detectors.mpfm.training import initial_modules, train, training_set
from mpfm_kedro.parameters import PrototypeParameters, TrainingParameters

Fits = Mapping[str, Artefact]


def fit_prototypes(
    data: TrainingData, upstream: Fits, parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """K-means++ groups, whitening and prototypes of patches, in every round; no anomaly is read."""
    normals = data.normals.of_backbone(parameters["backbone"])
    numbers = PrototypeParameters.model_construct(**parameters)
    fold = assign_folds(data.normal_items, numbers.folds, seed)
    return initialise(normals, fold, numbers, seed, context, whitened=parameters["transport_start"] != "printed")


def fit_modules(
    data: TrainingData, upstream: Fits, parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """The joint objective, from the last checkpoint if there is one; last iteration."""
    cross_fit = CrossFit.restore(upstream, data, parameters["backbone"], seed, context.device)
    modules = initial_modules(cross_fit, parameters, seed).to(context.device)
    images = training_set(cross_fit, parameters, context)
    schedule = TrainingParameters.model_construct(**parameters)
    history = train(modules, images, schedule, seed, context.checkpoint)
    tensors = {name: value.cpu().clone() for name, value in modules.state_dict().items()}
    return Artefact(tensors, {"parameters": dict(parameters), "history": history})


def fit_calibration(
    data: TrainingData, upstream: Fits, parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Calibrate the scores of all backbones together; only the named ones get a weight.

    Each round has a calibration of its own, by the normals that it learns from: what it says of the others is what the
    final one says of new images. The weights are the same in all rounds.
    """
    counted = counted_scores(parameters["scores"], parameters["step_0"])
    backbones, n_rounds = range(parameters["n_backbones"]), upstream["prototypes"].details["n_rounds"]
    calibrations: list[nn.ModuleList]  # of each round, by backbone
    if parameters["fusion"] == "printed":
        trained = counted if parameters["step_0"] else counted & ~STEP_0
        plain = PlainSum(weight=torch.from_numpy(trained).float()[:, None])
        calibrations = [nn.ModuleList([plain] * n_rounds) for _ in backbones]
    else:
        fits = [_calibrate(CrossFit.restore(upstream, data, number, seed, context.device)) for number in backbones]
        n_known = len(set(data.anomaly_items)) if "training" in upstream else 0
        weights = fit_weights([known for _, known in fits], n_known, counted)
        calibrations = [
            nn.ModuleList([SoftCalibration(**calibration.state_dict() | {"weight": weight}) for calibration in rounds])
            for (rounds, _), weight in zip(fits, weights, strict=True)
        ]
    tensors = {name: value.clone() for name, value in nn.ModuleList(calibrations).state_dict().items()}
    return Artefact(tensors, {"n_backbones": len(backbones), "n_rounds": n_rounds})


def _calibrate(cross_fit: CrossFit) -> tuple[list[SoftCalibration], Calibrated]:
    """The calibration of each round of one backbone, and what the last one makes of left-out images."""
    normals, anomalies = normal_evidence(cross_fit), anomaly_evidence(cross_fit)
    n_modes = len(cross_fit.models[0].groups.mode_center)
    learned = [Evidence(*(value[torch.from_numpy(kept)] for value in normals)) for kept in cross_fit.rounds.normals]
    calibrations, t_of_learned = zip(*(SoftCalibration.fit(evidence, n_modes) for evidence in learned), strict=True)
    t_of_anomalies = calibrations[-1](anomalies.scores, anomalies.p, anomalies.mode)
    return list(calibrations), Calibrated(t_of_learned[-1], t_of_anomalies, anomalies.mode, anomalies.weight, n_modes)


def normal_evidence(cross_fit: CrossFit) -> Evidence:
    """The six scores of each normal by the model of the round that leaves it out."""
    normals, held_out = cross_fit.data.normals, cross_fit.held_out
    scores = torch.empty(len(normals), len(SCORES))
    for model, images, x, p in cross_fit.held_out_normals():
        scores[images] = model.raw_scores_of(normals.take(images), x, p, held_out.squares[images].to(x))
    return Evidence(scores, held_out.p, held_out.mode, torch.ones(len(scores)))


def anomaly_evidence(cross_fit: CrossFit) -> Evidence:
    """The six scores of each known anomaly and view by the model of the round that leaves it out; an item counts 1."""
    anomalies = cross_fit.data.anomalies
    _, item = np.unique(cross_fit.data.anomaly_items, return_inverse=True)
    of_row = item[anomalies.source]
    views = np.bincount(of_row)[of_row]
    evidence = []
    for model, learned in zip(cross_fit.models, cross_fit.rounds.anomalies, strict=True):
        rows = anomalies.take(np.flatnonzero(~learned))
        x, p, mode = model.enter(model.standardiser.z_of(rows))
        scores = model.raw_scores_of(rows, x, p, model.mean_squares(rows, mode).to(x))
        evidence.append(Evidence(scores, p.cpu(), mode.cpu(), torch.from_numpy(1 / views[~learned]).float()))
    return Evidence(*map(torch.cat, zip(*evidence, strict=True)))
