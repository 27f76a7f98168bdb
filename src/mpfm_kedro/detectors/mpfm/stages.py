"""The stages of a fit as pieces that are stored: prototypes, training, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import MEMBERS, PARTS, SCORES, Calibration, Evidence, PlainSum, calibrate
from mpfm_kedro.detectors.mpfm.closed_form import Initialised, initialise
from mpfm_kedro.detectors.mpfm.fitting import anomaly_evidence, initial_modules, normal_evidence, training_set
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.objective import Forms
from mpfm_kedro.detectors.mpfm.rounds import Rounds, assign_folds
from mpfm_kedro.detectors.mpfm.storage import (
    load_state,
    pack_calibrations,
    pack_initialised,
    save_state,
    unpack_forms,
    unpack_initialised,
    unpack_modules,
)
from mpfm_kedro.detectors.mpfm.training import Schedule, State, train
from mpfm_kedro.detectors.mpfm.weights import STEP_0, fit_weights
from mpfm_kedro.detectors.pieces import piece_name

PRINTED = "printed"
NO_FORMS = Forms(mim_weight=0.0, mim_sharpness=1.0, push_margin=0.0)  # nothing was trained


def fit_prototypes(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """K-means++ groups, whitening and prototypes of patches, in every round; no anomaly is read."""
    normals = data.normals.of_backbone(parameters["backbone"])
    fold = assign_folds(len(normals), parameters["folds"], seed)
    initialised = initialise(
        normals,
        fold,
        parameters["n_prototypes"],
        parameters["n_patch_prototypes"],
        parameters["max_modes"],
        parameters["min_mode_size"],
        parameters["top_share"],
        seed,
        context.device,
        context.memory // 2,
        whitened=parameters["transport_start"] != PRINTED,
    )
    return pack_initialised(initialised, fold)


def fit_modules(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """The joint objective, from the last checkpoint if there is one; last iteration."""
    backbone, device = parameters["backbone"], context.device
    data = data.of_backbone(backbone)
    prototypes = earlier[piece_name("prototypes", backbone)]
    initialised, rounds = _initialised(prototypes, data, device, seed)
    standardiser = initialised.closed_forms[-1].standardiser
    z = torch.cat([standardiser.z_of(rows).cpu() for rows in (data.normals, data.anomalies)])
    forms = read_forms(parameters)
    modules = initial_modules(
        initialised,
        z,
        len(data.normals),
        rounds,
        forms,
        parameters["hidden"],
        parameters["transport_steps"],
        [share for share in parameters["head_top_shares"] for _ in range(parameters["head_members"])],
        parameters["transport_start"] != PRINTED,
        seed,
    ).to(device)
    schedule = Schedule(**{name: parameters[name] for name in Schedule.__dataclass_fields__})
    size = schedule.normals_per_batch + (schedule.anomalies_per_batch if len(data.anomalies) else 0)
    images = training_set(data, initialised, z, rounds, size, context)
    stored = context.checkpoint.load() if context.checkpoint else None

    def save(state: State) -> None:
        if context.checkpoint:
            context.checkpoint.save(save_state(state))

    history = train(modules, images, schedule, forms, seed, load_state(stored) if stored else None, save)
    tensors = {name: value.detach().cpu().clone() for name, value in modules.state_dict().items()}
    details = {"shares": modules.m_a.shares, "steps": modules.flow.steps, "forms": vars(forms), "history": history}
    return Artefact(tensors, details)


def fit_calibration(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Calibrate the scores of all backbones together; only the named ones get a weight.

    Each round has a calibration of its own, by the normals that it learns from: what it says of the others is what the
    final one says of new images. The weights are the same in all rounds.
    """
    counted = counted_scores(parameters["scores"], parameters["step_0"])
    backbones = range(parameters["n_backbones"])
    if parameters["fusion"] == PRINTED:
        trained = counted if parameters["step_0"] else counted & ~STEP_0
        n_rounds = earlier["prototypes"].details["n_rounds"]
        return pack_calibrations([[PlainSum(_column(trained)) for _ in range(n_rounds)] for _ in backbones])
    evidence = [_evidence(data.of_backbone(number), number, earlier, seed, context) for number in backbones]
    normals, anomalies, learns, n_modes = (list(values) for values in zip(*evidence, strict=True))
    calibrated = [_calibrations(*each) for each in zip(normals, learns, n_modes, strict=True)]
    final, of_normals = zip(*(of_rounds[-1] for of_rounds in calibrated), strict=True)
    of_anomalies = [each(own.scores, own.p, own.mode) for each, own in zip(final, anomalies, strict=True)]
    n_known = data.n_known if "training" in earlier else 0
    weights = fit_weights(list(of_normals), of_anomalies, anomalies, n_modes, n_known, counted)
    for of_rounds, weight in zip(calibrated, weights, strict=True):
        for each, _ in of_rounds:
            each.weight.copy_(weight)
    return pack_calibrations([[each for each, _ in of_rounds] for of_rounds in calibrated])


def _evidence(
    data: TrainingData, backbone: int, earlier: Mapping[str, Artefact], seed: int, context: Context
) -> tuple[Evidence, Evidence, np.ndarray, int]:
    """Of one backbone: held-out normals, left-out anomalies, which normals each round learns from (R, n), and J."""
    training = earlier.get(piece_name("training", backbone))
    initialised, rounds = _initialised(earlier[piece_name("prototypes", backbone)], data, context.device, seed)
    modules = None if training is None else unpack_modules(training).to(context.device)
    forms = NO_FORMS if training is None else unpack_forms(training)
    models = [
        MPFM(closed_form, modules.of_round(number) if modules else None, None, initialised.top_share, forms)
        for number, closed_form in enumerate(initialised.closed_forms)
    ]
    normals = normal_evidence(data.normals, initialised, modules, rounds, forms)
    return normals, anomaly_evidence(data.anomalies, models, rounds), rounds.normals, initialised.n_modes


def counted_scores(parts: list[str], step_0: bool) -> np.ndarray:
    """Which scores are added: those of the named parts, at step 0 without what was trained of S_g and S_r, (S,)."""
    named = [part for part, own in zip(PARTS, MEMBERS, strict=True) for _ in own]
    found = np.array([part in parts for part in named])
    trained = np.array([f"{name}0" in SCORES for name in SCORES])
    return found & ~trained if step_0 else found


def read_forms(parameters: Mapping[str, Any]) -> Forms:
    """The objective of some parameters."""
    weights = {name: parameters[name] for name in ("mim_weight", "mim_sharpness", "push_margin")}
    printed = {
        name: parameters[name] == PRINTED for name, field in Forms.__dataclass_fields__.items() if field.type == "bool"
    }
    return Forms(**weights, **printed)


def _initialised(artefact: Artefact, data: TrainingData, device: torch.device, seed: int) -> tuple[Initialised, Rounds]:
    """The closed forms on a device, and what each round learns from."""
    initialised, fold = unpack_initialised(artefact)
    for closed_form in initialised.closed_forms:
        closed_form.to(device)
    return initialised, Rounds.of_folds(fold, data.anomalies.source, seed)


def _calibrations(normals: Evidence, learns: np.ndarray, n_modes: int) -> list[tuple[Calibration, Tensor]]:
    """The calibration of each round, by the normals that it learns from (R, n), with t of these."""
    return [calibrate(normals.take(torch.from_numpy(own)), n_modes) for own in learns]


def _column(counted: np.ndarray) -> Tensor:
    return torch.from_numpy(counted).float()[:, None]
