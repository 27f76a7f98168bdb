"""The closed form: what is known of the normals before any training step. It knows no anomaly, no K and no λ.

Standardiser, modes, patch groups, and for every fitted normal and pseudo-anomaly its closed-form start and local
evidence, which all trainings from this closed form share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.division import divide
from mpfm_kedro.detectors.mpfm.heads import LocalEvidence, LocalScore
from mpfm_kedro.detectors.mpfm.mode_fitting import FittedModes, fit_modes, folds, modes_without_fold
from mpfm_kedro.detectors.mpfm.modes import Modes, Start
from mpfm_kedro.detectors.mpfm.patches import PatchGroups, fit_patch_groups

ROWS_AT_ONCE = 256
_MODES = ("weight", "mean", "basis", "variance", "residual_variance", "target_mean")
_PATCHES = ("n_groups", "mean", "whitening", "scale")


@dataclass(frozen=True)
class Standardiser:
    """Centre and spread of features, fitted on training normals; maps are standardised by channel."""

    pooled_center: Tensor
    pooled_spread: Tensor
    map_center: Tensor
    map_spread: Tensor

    def z(self, rows: FeatureRows) -> np.ndarray:
        """Standardised pooled statistics of stored features, (n, d)."""
        return (rows.pooled - self.pooled_center.numpy()) / self.pooled_spread.numpy()


@dataclass(frozen=True)
class ClosedForm:
    """Everything that is known of the normals before any training step.

    Args:
        standardiser: centre and spread of the features.
        modes: of the normals.
        labels: the mode that each normal was fitted to, (n,).
        shrinkage: of each mode, (J,).
        local_score: M_a before training, with patch groups unless the start is printed.
        starts: closed-form starts of normals and pseudo-anomalies by modes fitted without them; None if printed.
        evidence: what M_a reads of normals and pseudo-anomalies; None if printed.
    """

    standardiser: Standardiser
    modes: Modes
    labels: np.ndarray
    shrinkage: np.ndarray
    local_score: LocalScore
    starts: tuple[Start, Start] | None
    evidence: tuple[LocalEvidence, LocalEvidence] | None

    @property
    def printed(self) -> bool:
        """Whether there is no closed-form start."""
        return self.starts is None

    def pack(self, details: dict[str, Any]) -> Artefact:
        """As tensors and plain values."""
        tensors = {f"standardiser.{name}": value for name, value in vars(self.standardiser).items()}
        tensors |= {f"modes.{name}": getattr(self.modes, name) for name in _MODES}
        tensors |= {"labels": torch.from_numpy(self.labels), "shrinkage": torch.from_numpy(self.shrinkage)}
        if self.starts is not None and self.evidence is not None and self.local_score.patches is not None:
            tensors |= {f"patches.{name}": getattr(self.local_score.patches, name) for name in _PATCHES}
            tensors["energy"] = torch.stack([self.local_score.energy_center, self.local_score.energy_spread])
            for name, start, evidence in zip(("normals", "pseudo"), self.starts, self.evidence, strict=True):
                values = start._asdict() | evidence._asdict()
                tensors |= {f"{name}.{part}": value for part, value in values.items()}
        return Artefact(tensors, {"top_share": self.local_score.top_share, **details})


def unpack(artefact: Artefact) -> ClosedForm:
    """The inverse of ``ClosedForm.pack``."""
    standardiser = Standardiser(**artefact.part("standardiser"))
    patches = artefact.part("patches")
    local_score = LocalScore(
        standardiser.map_center,
        standardiser.map_spread,
        artefact.details["top_share"],
        PatchGroups(**patches) if patches else None,
    )
    starts = evidence = None
    if patches:
        local_score.energy_center, local_score.energy_spread = artefact.tensors["energy"].clone()
        groups = [artefact.part(name) for name in ("normals", "pseudo")]
        first, second = (Start(part["psi"], part["log_prob"]) for part in groups)
        starts = first, second
        one, other = (LocalEvidence(part["energy"], part["patch"]) for part in groups)
        evidence = one, other
    return ClosedForm(
        standardiser,
        Modes(**artefact.part("modes")),
        artefact.tensors["labels"].numpy(),
        artefact.tensors["shrinkage"].numpy(),
        local_score,
        starts,
        evidence,
    )


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Fit the closed form on the normals; held-back normals decide the shrinkage."""
    division = divide(data, parameters["held_back_share"], seed)
    closed_form, tried = fit_closed_form(
        division.normals,
        division.pseudo,
        division.held_back,
        parameters["max_modes"],
        parameters["min_mode_size"],
        parameters["top_share"],
        seed,
        parameters["transport_start"] == "printed",
    )
    return closed_form.pack({"modes_tried": tried})


def fit_closed_form(
    normals: FeatureRows,
    pseudo: FeatureRows,
    held_back: FeatureRows,
    max_modes: int,
    min_mode_size: int,
    top_share: float,
    seed: int,
    printed: bool = False,
) -> tuple[ClosedForm, list[dict[str, float]]]:
    """The closed form of normals, and one row for each number of modes tried."""
    standardiser = fit_standardiser(normals)
    z = standardiser.z(normals)
    fitted, tried = fit_modes(z, standardiser.z(held_back), max_modes, min_mode_size, seed)
    patches = None if printed else fit_patch_groups(normals, fitted.labels, seed)
    local_score = LocalScore(standardiser.map_center, standardiser.map_spread, top_share, patches)
    starts = evidence = None
    if not printed:
        labels = torch.from_numpy(fitted.labels)
        local_score.standardise_energy(
            torch.cat([_evidence(local_score, maps, labels[part]).energy for part, maps in normals.map_batches()])
        )
        starts = _cross_fitted(standardiser, fitted, normals, pseudo, seed)
        first, second = (
            local_evidence(local_score, fitted.modes, standardiser.z(rows), rows) for rows in (normals, pseudo)
        )
        evidence = first, second
    return (
        ClosedForm(standardiser, fitted.modes, fitted.labels, fitted.shrinkage, local_score, starts, evidence),
        tried,
    )


def fit_standardiser(normals: FeatureRows) -> Standardiser:
    """Centre and spread of pooled statistics, and of the map's channels over all positions."""
    channels = normals.maps.shape[1]
    total, squares, count = torch.zeros(channels).double(), torch.zeros(channels).double(), 0
    for _, maps in normals.map_batches():
        maps = maps.double()  # the difference of squares below needs it
        total, squares = total + maps.sum((0, 2, 3)), squares + maps.square().sum((0, 2, 3))
        count += maps.numel() // maps.shape[1]
    center = total / count
    spread = (squares / count - center.square()).clamp_min(0).sqrt()
    pooled = torch.from_numpy(normals.pooled).double()
    return Standardiser(
        pooled_center=pooled.mean(0).float(),
        pooled_spread=_not_zero(pooled.std(0, correction=0)).float(),
        map_center=center.float(),
        map_spread=_not_zero(spread).float(),
    )


def closed_form_start(modes: Modes, z: np.ndarray) -> Start:
    """The closed-form start of many samples, (n, d) → ψ_0 (n, d), log ω_j N (n, J)."""
    device = modes.mean.device
    with torch.inference_mode():
        starts = [modes.start(piece.to(device)) for piece in torch.from_numpy(z).float().split(ROWS_AT_ONCE)]
    return Start(*(torch.cat(parts).cpu() for parts in zip(*starts, strict=True)))


def start_by_fold(partial: list[Modes], z: np.ndarray, fold: np.ndarray) -> Start:
    """The start of each sample by the modes that were fitted without its fold (n,)."""
    psi = torch.empty(z.shape)
    log_prob = torch.empty(len(z), partial[0].n_modes)
    for number, modes in enumerate(partial):
        if (fold == number).any():
            psi[fold == number], log_prob[fold == number] = closed_form_start(modes, z[fold == number])
    return Start(psi, log_prob)


def _cross_fitted(
    standardiser: Standardiser, fitted: FittedModes, normals: FeatureRows, pseudo: FeatureRows, seed: int
) -> tuple[Start, Start]:
    """Starts of normals and pseudo-anomalies by modes that were fitted without the normal."""
    z, fold = standardiser.z(normals), folds(len(normals), seed)
    partial = modes_without_fold(z, fitted, fold)
    return start_by_fold(partial, z, fold), start_by_fold(partial, standardiser.z(pseudo), fold[pseudo.source])


def local_evidence(local_score: LocalScore, modes: Modes, z: np.ndarray, rows: FeatureRows) -> LocalEvidence:
    """What M_a reads of every image, by its most probable mode; on the device of the modes, returned on the CPU."""
    device = modes.mean.device
    pieces = [[torch.empty(0), torch.empty(0, rows.maps.shape[1])]]
    with torch.inference_mode():
        for part, maps in rows.map_batches():
            mode = modes.log_prob(torch.from_numpy(z[part]).to(device)).argmax(1)
            pieces.append([value.cpu() for value in _evidence(local_score, maps.to(device), mode)])
    return LocalEvidence(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def _evidence(local_score: LocalScore, maps: Tensor, mode: Tensor) -> LocalEvidence:
    evidence = local_score.evidence(maps, mode)
    assert evidence is not None
    return evidence


def _not_zero(spread: Tensor) -> Tensor:
    """A constant feature keeps its scale."""
    return torch.where(spread > 1e-6, spread, torch.ones_like(spread))
