"""The stages of a fit as pieces that are stored: prototypes in closed form, joint training, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import SCORES, Calibration, Evidence, PlainSum, calibrate
from mpfm_kedro.detectors.mpfm.closed_form import Initialised, initialise
from mpfm_kedro.detectors.mpfm.fitting import initial_modules, training_set
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.modules import Forms, Modules
from mpfm_kedro.detectors.mpfm.rounds import Rounds, assign_folds
from mpfm_kedro.detectors.mpfm.specification import stage_name
from mpfm_kedro.detectors.mpfm.training import train
from mpfm_kedro.detectors.mpfm.weights import STEP_0, counted_scores, fit_weights
from mpfm_kedro.parameters import PrototypeParameters, TrainingParameters

PRINTED = "printed"


def fit_prototypes(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """K-means++ groups, whitening and prototypes of patches, in every round; no anomaly is read."""
    normals = data.normals.of_backbone(parameters["backbone"])
    numbers = PrototypeParameters.model_construct(**parameters)
    fold = assign_folds(data.normal_items, numbers.folds, seed)
    whitened = parameters["transport_start"] != PRINTED
    return initialise(normals, fold, numbers, seed, context, whitened)


def fit_modules(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """The joint objective, from the last checkpoint if there is one; last iteration."""
    data = data.of_backbone(parameters["backbone"])
    initialised = Initialised.restore(earlier[stage_name("prototypes", parameters["backbone"])], context.device)
    rounds = Rounds.of_folds(initialised.fold, data, seed)
    standardiser = initialised.closed_forms[0].standardiser
    z = torch.cat([standardiser.z_of(rows).cpu() for rows in (data.normals, data.anomalies)])
    schedule = TrainingParameters.model_construct(**parameters)
    forms, coupled = read_forms(parameters), parameters["transport_start"] != PRINTED
    modules = initial_modules(initialised, z, rounds, forms, schedule, coupled, seed).to(context.device)
    batch_size = schedule.normals_per_batch + (schedule.anomalies_per_batch if len(data.anomalies) else 0)
    images = training_set(data, initialised, z, rounds, batch_size, context)
    history = train(modules, images, schedule, seed, context.checkpoint)
    tensors = {name: value.detach().cpu().clone() for name, value in modules.state_dict().items()}
    return Artefact(tensors, {**modules.details(), "history": history})


def fit_calibration(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Calibrate the scores of all backbones together; only the named ones get a weight.

    Each round has a calibration of its own, by the normals that it learns from: what it says of the others is what the
    final one says of new images. The weights are the same in all rounds.
    """
    counted = counted_scores(parameters["scores"], parameters["step_0"])
    backbones = range(parameters["n_backbones"])
    calibrations: list[list[Calibration | PlainSum]]
    if parameters["fusion"] == PRINTED:
        trained = counted if parameters["step_0"] else counted & ~STEP_0
        weight = torch.from_numpy(trained).float()[:, None]
        calibrations = [[PlainSum(weight=weight)] * earlier["prototypes"].details["n_rounds"] for _ in backbones]
    else:
        calibrations = _calibrate(data, earlier, counted, backbones, seed, context)
    tensors = {
        f"{backbone}.{number}.{name}": value.clone()
        for backbone, of_rounds in enumerate(calibrations)
        for number, calibration in enumerate(of_rounds)
        for name, value in calibration.state_dict().items()
    }
    return Artefact(tensors, {"n_backbones": len(calibrations), "n_rounds": len(calibrations[0])})


def _calibrate(
    data: TrainingData,
    earlier: Mapping[str, Artefact],
    counted: np.ndarray,
    backbones: range,
    seed: int,
    context: Context,
) -> list[list[Calibration | PlainSum]]:
    """The calibrations of all backbones and rounds."""
    calibrations: list[list[Calibration | PlainSum]] = []
    of_normals, of_anomalies, evidence, n_modes = [], [], [], []
    for backbone in backbones:
        images = data.of_backbone(backbone)
        training = earlier.get(stage_name("training", backbone))
        initialised = Initialised.restore(earlier[stage_name("prototypes", backbone)], context.device)
        rounds = Rounds.of_folds(initialised.fold, images, seed)
        modules = Modules.restore(training.tensors, training.details).to(context.device) if training else None
        models = [
            MPFM(closed_form, modules.of_round(number) if modules else None, None, initialised.top_share)
            for number, closed_form in enumerate(initialised.closed_forms)
        ]
        normals = normal_evidence(images.normals, initialised, models)
        anomalies = anomaly_evidence(images.anomalies, models, rounds)
        fits = [calibrate(normals.take(torch.from_numpy(own)), initialised.n_modes) for own in rounds.normals]
        calibrations.append([calibration for calibration, _ in fits])
        final, t = fits[-1]
        of_normals.append(t)
        of_anomalies.append(final(anomalies.scores, anomalies.p, anomalies.mode))
        evidence.append(anomalies)
        n_modes.append(initialised.n_modes)
    n_known = data.n_known if "training" in earlier else 0
    weights = fit_weights(of_normals, of_anomalies, evidence, n_modes, n_known, counted)
    for of_rounds, weight in zip(calibrations, weights, strict=True):
        for calibration in of_rounds:
            calibration.weight.copy_(weight)
    return calibrations


def read_forms(parameters: Mapping[str, Any]) -> Forms:
    """The objective of some parameters."""
    fields = Forms.__dataclass_fields__
    return Forms(
        **{
            name: parameters[name] == PRINTED if field.type == "bool" else parameters[name]
            for name, field in fields.items()
        }
    )


@torch.no_grad()
def normal_evidence(normals: FeatureRows, initialised: Initialised, models: list[MPFM]) -> Evidence:
    """The six scores of each normal by the model of the round that leaves it out."""
    scores = torch.empty(len(normals), len(SCORES))
    for number, images in initialised.held_out():
        p, squares = initialised.p[images], initialised.squares[images]
        x = initialised.x(number, images)
        scores[images] = _raw_scores(models[number], normals.take(images), x, p.to(x), squares.to(x))
    return Evidence(scores, initialised.p, initialised.mode, torch.ones(len(scores)))


@torch.no_grad()
def anomaly_evidence(anomalies: FeatureRows, models: list[MPFM], rounds: Rounds) -> Evidence:
    """The six scores of each known anomaly and view by the model of the round that leaves it out."""
    views = np.bincount(anomalies.source)[anomalies.source]
    evidence = []
    for model, learned in zip(models, rounds.anomalies, strict=True):
        rows, closed_form = anomalies.take(np.flatnonzero(~learned)), model.closed_form
        x, p, mode = closed_form.enter(closed_form.standardiser.z_of(rows))
        squares = closed_form.mean_squares(rows, mode, model.top_share)
        scores = _raw_scores(model, rows, x, p, squares.to(x))
        evidence.append(Evidence(scores, p.cpu(), mode.cpu(), torch.from_numpy(1 / views[~learned]).float()))
    return Evidence.joined(evidence)


def _raw_scores(model: MPFM, rows: FeatureRows, x: Tensor, p: Tensor, squares: Tensor) -> Tensor:
    """The six scores of images as they enter the flow, in small batches, (b, S)."""
    z, scores = model.closed_form.standardiser.z_of(rows), torch.empty(len(rows), len(SCORES))
    for part, maps in rows.map_batches(x.device):
        scores[part] = model.raw_scores(z[part], x[part], p[part], squares[part], maps)[0].cpu()
    return scores
