"""The closed form: what is known of the normals before anything is learned from an anomaly.

Standardiser, modes, patch prototypes: once of all normals, and once without each of some folds of them. What the
models without a fold say of its normals is what the final one will say of new normals; calibration rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import DEFAULT_MEMORY, Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.heads import top_number
from mpfm_kedro.detectors.mpfm.mode_fitting import (
    build_modes,
    choose_partition,
    choose_shrinkage,
    folds,
    log_likelihoods,
    spectra_of,
)
from mpfm_kedro.detectors.mpfm.modes import Modes, Start
from mpfm_kedro.detectors.mpfm.patch_fitting import SmoothedPatches, fit_patch_prototypes
from mpfm_kedro.detectors.mpfm.patches import PatchPrototypes, position_scale, smooth

ROWS_AT_ONCE = 256
_MODES = ("weight", "mean", "basis", "variance", "residual_variance", "target_mean")
_PATCHES = ("number", "center", "whitening", "mean", "scale")


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


class ClosedScores(NamedTuple):
    """The scores in closed form of n images: S_g (n,) and S_r (n,), the most probable mode (n,)."""

    g: np.ndarray
    r: np.ndarray
    mode: np.ndarray


@dataclass(frozen=True)
class ClosedForm:
    """Modes of the normal images and prototypes of their patches.

    Args:
        standardiser: centre and spread of the features.
        modes: of the normals.
        patches: prototypes of patches.
        top_share: share of the positions that S_r averages.
    """

    standardiser: Standardiser
    modes: Modes
    patches: PatchPrototypes
    top_share: float

    @property
    def device(self) -> torch.device:
        """Where modes and patches are."""
        return self.modes.mean.device

    def to(self, device: torch.device) -> Self:
        """With modes and patches on the device."""
        self.modes.to(device)
        self.patches.to(device)
        return self

    def score(self, rows: FeatureRows) -> ClosedScores:
        """S_g, S_r, the mean energy of the most unusual patches, and the mode."""
        g, mode = self.likelihood(rows)
        return ClosedScores(g, top_mean(self.energy(rows, mode), self.top_share), mode.numpy())

    @torch.inference_mode()
    def likelihood(self, rows: FeatureRows) -> tuple[np.ndarray, Tensor]:
        """S_g = −log Σ_j ω_j N(z; m_j, Σ_j) / d (n,) and the most probable mode (n,)."""
        z = torch.from_numpy(self.standardiser.z(rows)).float()
        log_prob = torch.cat([self.modes.log_prob(piece.to(self.device)).cpu() for piece in z.split(ROWS_AT_ONCE)])
        return -log_prob.double().logsumexp(1).numpy() / z.shape[1], log_prob.argmax(1)

    @torch.inference_mode()
    def energy(self, rows: FeatureRows, mode: Tensor) -> Tensor:
        """The energy of each position, (n, H', W')."""
        found = [torch.empty(0, *rows.maps.shape[2:])]
        for part, maps in rows.map_batches(self.device):
            found.append(self.patches.energy(smooth(maps), mode[part].to(self.device)).cpu())
        return torch.cat(found)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """As tensors with a prefix."""
        found = {f"{prefix}.standardiser.{name}": value for name, value in vars(self.standardiser).items()}
        found |= {f"{prefix}.modes.{name}": getattr(self.modes, name).cpu() for name in _MODES}
        return found | {f"{prefix}.patches.{name}": getattr(self.patches, name).cpu() for name in _PATCHES}


@dataclass(frozen=True)
class CrossFitted:
    """Closed forms without some folds of the normals, and what they say of these.

    Args:
        final: the closed form of all normals.
        without: the closed forms without fold 0, 1, …
        fold: of each normal (n,).
        labels: the mode of each normal in the partition (n,).
        shrinkage: of each mode (J,).
        unseen: scores of the normals of folds 0, 1, …, fold after fold.
    """

    final: ClosedForm
    without: list[ClosedForm]
    fold: np.ndarray
    labels: np.ndarray
    shrinkage: np.ndarray
    unseen: ClosedScores

    def positions(self, fold: int) -> np.ndarray:
        """Positions of a fold's normals among all."""
        return np.flatnonzero(self.fold == fold)

    def pack(self, details: dict[str, Any]) -> Artefact:
        """As tensors and plain values."""
        tensors = self.final.tensors("final")
        for number, closed_form in enumerate(self.without):
            tensors |= closed_form.tensors(f"without{number}")
        arrays = {"fold": self.fold, "labels": self.labels, "shrinkage": self.shrinkage}
        arrays |= {f"unseen.{name}": value for name, value in self.unseen._asdict().items()}
        tensors |= {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        return Artefact(tensors, {"top_share": self.final.top_share, "n_without": len(self.without), **details})


def unpack_final(artefact: Artefact) -> ClosedForm:
    """The closed form of all normals."""
    return _unpack_one(artefact, "final")


def unpack(artefact: Artefact) -> CrossFitted:
    """The inverse of ``CrossFitted.pack``."""
    arrays = {name: artefact.tensors[name].numpy() for name in ("fold", "labels", "shrinkage")}
    unseen = ClosedScores(**{name: value.numpy() for name, value in artefact.part("unseen").items()})
    without = [_unpack_one(artefact, f"without{number}") for number in range(artefact.details["n_without"])]
    return CrossFitted(unpack_final(artefact), without, **arrays, unseen=unseen)


def _unpack_one(artefact: Artefact, prefix: str) -> ClosedForm:
    own = Artefact(artefact.part(prefix))
    return ClosedForm(
        Standardiser(**own.part("standardiser")),
        Modes(**own.part("modes")),
        PatchPrototypes(**own.part("patches")),
        artefact.details["top_share"],
    )


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Fit the closed form on the normals, and without each of some folds of them."""
    fitted, tried = fit_closed_form(
        data.normals.of_backbone(parameters["backbone"]),
        parameters["max_modes"],
        parameters["min_mode_size"],
        parameters["n_prototypes"],
        parameters["top_share"],
        parameters["unseen_normals"],
        seed,
        context.device,
        context.memory // 2,
    )
    return fitted.pack({"modes_tried": tried})


def fit_closed_form(
    normals: FeatureRows,
    max_modes: int,
    min_mode_size: int,
    n_prototypes: int,
    top_share: float,
    unseen_normals: int,
    seed: int,
    device: torch.device,
    memory: int = DEFAULT_MEMORY,
) -> tuple[CrossFitted, list[dict[str, float]]]:
    """The closed forms of normals, and one row for each number of modes tried; patches may take so much memory."""
    fold = folds(len(normals), seed)
    everything = np.ones(len(normals), dtype=bool)
    kept = np.stack([everything, *(fold != number for number in range(n_left_out(fold, unseen_normals)))])
    standardisers = fit_standardisers(normals, kept)
    z = [standardiser.z(normals) for standardiser in standardisers]
    labels, tried = choose_partition(z[0], fold, max_modes, min_mode_size, seed)
    n_modes = int(labels.max()) + 1
    spectra = [spectra_of(one[own], labels[own], n_modes) for one, own in zip(z, kept, strict=True)]
    left_out = [one[~own] for one, own in zip(z, kept, strict=True)][1:]
    shrinkage = choose_shrinkage(
        [log_likelihoods(*each) for each in zip(spectra[1:], left_out, strict=True)],
        [labels[~own] for own in kept[1:]],
        n_modes,
    )
    modes = [
        build_modes(own_spectra, one[own], labels[own], shrinkage)
        for own_spectra, one, own in zip(spectra, z, kept, strict=True)
    ]
    smoothed = SmoothedPatches(normals, device, memory)
    patches = fit_patch_prototypes(smoothed, kept, labels, n_modes, n_prototypes, seed)
    parts = zip(standardisers, modes, patches, strict=True)
    closed_forms = [ClosedForm(*each, top_share).to(device) for each in parts]
    return _scaled(closed_forms, normals, fold, labels, shrinkage), tried


def n_left_out(fold: np.ndarray, unseen_normals: int) -> int:
    """How many folds are left out in turn, until they have so many normals together: one of many, all of few."""
    n_folds = int(fold.max()) + 1
    return min(n_folds, max(1, math.ceil(unseen_normals * n_folds / len(fold))))


def fit_standardisers(normals: FeatureRows, kept: np.ndarray) -> list[Standardiser]:
    """Centre and spread of pooled statistics, and of the map's channels over all positions, of each subset (S, n)."""
    mean, variance = torch.zeros(2, len(normals), normals.maps.shape[1])  # of each image and channel
    for part, stored in normals.map_batches():
        maps = stored.float()
        mean[part] = maps.mean((2, 3))
        variance[part] = (maps - mean[part, :, None, None]).square().mean((2, 3))
    pooled = torch.from_numpy(normals.pooled).double()
    found = []
    for own in torch.from_numpy(kept):
        between = mean[own].double()
        spread = (variance[own].double().mean(0) + between.var(0, correction=0)).sqrt()
        found.append(
            Standardiser(
                pooled_center=pooled[own].mean(0).float(),
                pooled_spread=_not_zero(pooled[own].std(0, correction=0)).float(),
                map_center=between.mean(0).float(),
                map_spread=_not_zero(spread).float(),
            )
        )
    return found


def closed_form_start(modes: Modes, z: np.ndarray) -> Start:
    """The closed-form start of many samples, (n, d) → ψ_0 (n, d), log ω_j N (n, J)."""
    device = modes.mean.device
    with torch.inference_mode():
        starts = [modes.start(piece.to(device)) for piece in torch.from_numpy(z).float().split(ROWS_AT_ONCE)]
    return Start(*(torch.cat(parts).cpu() for parts in zip(*starts, strict=True)))


def top_mean(energy: Tensor, share: float) -> np.ndarray:
    """The mean over the top share of the positions, (n, H', W') → (n,)."""
    flat = energy.flatten(1)
    return flat.topk(top_number(share, flat.shape[1]), dim=1).values.mean(1).double().numpy()


def _scaled(
    closed_forms: list[ClosedForm], normals: FeatureRows, fold: np.ndarray, labels: np.ndarray, shrinkage: np.ndarray
) -> CrossFitted:
    """Give all closed forms the scale that unseen normals need, and score these by it."""
    final, *without = closed_forms
    unseen = [normals.take(np.flatnonzero(fold == number)) for number in range(len(without))]
    likelihoods = [closed_form.likelihood(rows) for closed_form, rows in zip(without, unseen, strict=True)]
    mode = torch.cat([own for _, own in likelihoods])
    energies = [each.energy(rows, own) for each, rows, (_, own) in zip(without, unseen, likelihoods, strict=True)]
    energy = torch.cat(energies)
    scale = position_scale(energy, mode, final.modes.n_modes)
    for closed_form in closed_forms:
        closed_form.patches.scale.copy_(scale)
    r = top_mean(energy / scale[mode], final.top_share)
    scores = ClosedScores(np.concatenate([g for g, _ in likelihoods]), r, mode.numpy())
    return CrossFitted(final, without, fold, labels, shrinkage, scores)


def _not_zero(spread: Tensor) -> Tensor:
    """A constant feature keeps its scale."""
    return torch.where(spread > 1e-6, spread, torch.ones_like(spread))
