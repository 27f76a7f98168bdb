"""From the features and the initial model of a run to what the trainer takes, and the calibration after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.model.artefact import Artefact, unpack
from mpfm_kedro.model.calibration import PARTS, Calibration, calibrate, plain_sum
from mpfm_kedro.model.feature_rows import FeatureRows
from mpfm_kedro.model.heads import LocalEvidence
from mpfm_kedro.model.initialisation import ROWS_AT_ONCE, Initialisation, move, move_by_fold
from mpfm_kedro.model.mode_fitting import FittedModes, folds, modes_without_fold
from mpfm_kedro.model.modes import Path, Start
from mpfm_kedro.model.mpfm import MPFM
from mpfm_kedro.model.objective import Options
from mpfm_kedro.model.trainer import Moved, TrainingSet
from mpfm_kedro.parameters import RepairParameters, Score, TrainingParameters
from mpfm_kedro.pipelines.training.run_data import RunData


def objective_options(training: TrainingParameters, repairs: RepairParameters, n_anomalies: int) -> Options:
    """The objective's weights and forms; the more anomalies are known, the less the pseudo-anomalies count."""
    return Options(
        mim_weight=training.mim_weight,
        mim_sharpness=training.mim_sharpness,
        push_margin=training.push_margin,
        head_penalty=training.head_penalty,
        pseudo_weight=1 / n_anomalies,
        printed_mutual_information=repairs.mutual_information == "printed",
        printed_normality_target=repairs.normality_target == "printed",
        scores="".join(training.scores),
    )


def kept_for_training(init: Initialisation, model: MPFM, data: RunData) -> dict[str, Tensor]:
    """What every training from the same initial model would compute again: partition, shrinkage, local evidence."""
    kept = {"labels": torch.from_numpy(init.fitted.labels), "shrinkage": torch.from_numpy(init.fitted.shrinkage)}
    for name in ("normals", "pseudo"):
        evidence = _evidence(model, getattr(data, name))
        if evidence is not None:
            kept |= {f"{name}_{part}": tensor for part, tensor in evidence._asdict().items()}
    return kept


def training_set(model: MPFM, initial: Artefact, data: RunData, seed: int, repairs: RepairParameters) -> TrainingSet:
    """Every training image with its closed-form places: normals by modes that were fitted without them."""
    generator = torch.Generator().manual_seed(seed)
    pieces = (data.normals, data.pseudo, data.anomalies)
    z = [_z(model, rows) for rows in pieces]
    paths: list[Path | None] = [None] * 3
    if repairs.coupling == "repaired":
        paths = [_paths(model, piece, generator) for piece in z]
    starts: list[Start | None] = [None] * 3
    if model.velocity.modes is not None and model.transport_steps == 1:
        labels, shrinkage = (initial.tensors[f"extra.{name}"].numpy() for name in ("labels", "shrinkage"))
        modes = unpack(initial).modes
        fold = folds(len(labels), seed)
        partial = modes_without_fold(z[0], FittedModes(modes, labels, shrinkage, 0.0), fold)
        own = [move_by_fold(partial, piece, fold[rows.source]) for piece, rows in zip(z, pieces[:2], strict=False)]
        starts = [*own, move(modes, z[2])]
    evidences = [
        _kept_evidence(initial, "normals"),
        _kept_evidence(initial, "pseudo"),
        _evidence(model, data.anomalies),
    ]
    return TrainingSet(*(Moved(*parts) for parts in zip(pieces, starts, paths, evidences, strict=True)))


def score_rows(model: MPFM, rows: FeatureRows) -> tuple[np.ndarray, np.ndarray]:
    """The four scores (n, 4) and the mode (n,) of many images."""
    device = model.pooled_center.device
    parts, modes = [np.empty((0, 4))], [np.empty(0, dtype=int)]
    for piece, maps in rows.map_batches():
        scores, mode = model.score(torch.from_numpy(rows.pooled[piece]).to(device), maps.to(device))
        parts.append(torch.stack(scores, dim=1).cpu().double().numpy())
        modes.append(mode.cpu().numpy())
    return np.concatenate(parts), np.concatenate(modes)


def calibrate_model(model: MPFM, data: RunData, repairs: RepairParameters, scores: list[Score]) -> Calibration:
    """Standardisation and weights from held-back normals and their pseudo-anomalies; of the named scores alone."""
    if repairs.fusion == "printed":
        calibration = plain_sum(model.modes.n_modes)
    else:
        normals, pseudo = score_rows(model, data.held_back), score_rows(model, data.held_back_pseudo)
        calibration = calibrate(*normals, *pseudo, n_modes=model.modes.n_modes)
    return replace(calibration, weight=calibration.weight * [part in scores for part in PARTS])


def _z(model: MPFM, rows: FeatureRows) -> np.ndarray:
    with torch.inference_mode():
        return model.z(torch.from_numpy(rows.pooled).to(model.pooled_center.device)).cpu().numpy()


def _evidence(model: MPFM, rows: FeatureRows) -> LocalEvidence | None:
    """What M_a reads of every image, by its most probable mode."""
    if model.local_score.patches is None:
        return None
    device = model.pooled_center.device
    pieces = [[torch.empty(0), torch.empty(0, rows.maps.shape[1])]]
    with torch.inference_mode():
        for piece, maps in rows.map_batches():
            mode = model.modes.log_prob(model.z(torch.from_numpy(rows.pooled[piece]).to(device))).argmax(1)
            evidence = model.local_score.evidence(maps.to(device), mode)
            assert evidence is not None
            pieces.append([part.cpu() for part in evidence])
    return LocalEvidence(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def _kept_evidence(initial: Artefact, name: str) -> LocalEvidence | None:
    names = [f"extra.{name}_{part}" for part in LocalEvidence._fields]
    return LocalEvidence(*(initial.tensors[name] for name in names)) if names[0] in initial.tensors else None


def _paths(model: MPFM, z: np.ndarray, generator: torch.Generator) -> Path:
    """The straight path of every image to its end in the prototype space."""
    device, paths = model.pooled_center.device, []
    with torch.inference_mode():
        for piece in torch.from_numpy(z).split(ROWS_AT_ONCE):
            start = piece.to(device)
            paths.append([part.cpu() for part in model.modes.path(start, model.modes.endpoint(start, generator))])
    return Path(*(torch.cat(parts) for parts in zip(*paths, strict=True)))
