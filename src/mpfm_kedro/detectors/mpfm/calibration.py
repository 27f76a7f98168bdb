"""From four scores of different scale to one: standardised on normals that nothing was fitted to, then weighted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.assembly import assemble, score_rows
from mpfm_kedro.detectors.mpfm.division import divide

PARTS = ("g", "a", "r", "n")
SIGNS = np.array([1.0, 1.0, 1.0, -1.0])
MIN_NORMALS_OF_A_MODE = 8


@dataclass(frozen=True)
class Calibration:
    """Centre and spread of each score on held-back normals, by mode, and the weights of the sum.

    A score's level differs from mode to mode (volumes of the modes, what the heads learned of the modes' looks).
    Standardising within the mode gives normals of every mode the same false-alarm rate.

    Args:
        center: (4, J).
        spread: (4, J).
        weight: (4,), not negative.
        compressed: whether far scores are compressed; not in the printed sum.
    """

    center: np.ndarray
    spread: np.ndarray
    weight: np.ndarray
    compressed: bool = True

    def standardise(self, parts: np.ndarray, mode: np.ndarray) -> np.ndarray:
        """Scores (n, 4) and modes (n,) → scores in units of the normals' spread, compressed by asinh, (n, 4).

        asinh is the identity for ordinary scores and a logarithm far out, so that no single part decides by the
        length of its tail.
        """
        standardised = (parts - self.center[:, mode].T) / self.spread[:, mode].T
        return np.arcsinh(standardised) if self.compressed else standardised

    def fuse(self, parts: np.ndarray, mode: np.ndarray) -> np.ndarray:
        """S = w_g S_g + w_a S_a + w_r S_r − w_n S_n, (n, 4) → (n,)."""
        return self.standardise(parts, mode) @ (SIGNS * self.weight)


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Calibrate the model of the earlier pieces on held-back normals; only the named scores get a weight."""
    model = assemble(earlier, context.device)
    if parameters["fusion"] == "printed":
        calibration = plain_sum(model.modes.n_modes)
    else:
        division = divide(data, parameters["held_back_share"], seed)
        normals, pseudo = score_rows(model, division.held_back), score_rows(model, division.held_back_pseudo)
        calibration = calibrate(*normals, *pseudo, n_modes=model.modes.n_modes)
    counted = [part in parameters["scores"] for part in PARTS]
    return pack(replace(calibration, weight=calibration.weight * counted))


def pack(calibration: Calibration) -> Artefact:
    """As tensors and plain values."""
    arrays = {name: getattr(calibration, name) for name in ("center", "spread", "weight")}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return Artefact(tensors, {"compressed": calibration.compressed})


def unpack(artefact: Artefact) -> Calibration:
    """The inverse of ``pack``."""
    arrays = {name: tensor.numpy() for name, tensor in artefact.tensors.items()}
    return Calibration(**arrays, compressed=artefact.details["compressed"])


def calibrate(
    normals: np.ndarray, modes: np.ndarray, pseudo: np.ndarray, pseudo_modes: np.ndarray, n_modes: int
) -> Calibration:
    """Fit the calibration on held-back normals, the weights also on their pseudo-anomalies.

    Args:
        normals: scores of held-back normals (n, 4).
        modes: their modes (n,).
        pseudo: scores of pseudo-anomalies made of held-back normals (m, 4), none of them seen in training.
        pseudo_modes: their modes (m,).
        n_modes: J.
    """
    center = np.repeat(normals.mean(0)[:, None], n_modes, axis=1)
    spread = np.repeat(normals.std(0)[:, None], n_modes, axis=1)
    for j in range(n_modes):
        own = normals[modes == j]
        if len(own) >= MIN_NORMALS_OF_A_MODE:
            center[:, j], spread[:, j] = own.mean(0), own.std(0)
    flat = Calibration(center, np.where(spread > 1e-9, spread, 1.0), np.ones(4))
    if len(pseudo) == 0:  # nothing speaks for the heads, nor against the likelihoods
        return replace(flat, weight=np.array([1.0, 1.0, 0.0, 0.0]))
    evidence = _evidence(flat.standardise(normals, modes) * SIGNS, flat.standardise(pseudo, pseudo_modes) * SIGNS)
    return replace(flat, weight=weights(evidence))


def weights(evidence: np.ndarray) -> np.ndarray:
    """The written rule: S_g and S_a, which start as likelihoods, count in full, S_r and S_n by a quarter of evidence.

    Evidence of a head is 2·AUC − 1 between held-back normals and their pseudo-anomalies, not below zero: how well
    what it learned carries over to something it was not trained on.
    """
    share = np.clip(evidence, 0, 1)
    return np.array([1.0, float(share[1] > 0), 0.25 * share[2], 0.25 * share[3]])


def plain_sum(n_modes: int) -> Calibration:
    """The printed fusion: S_g + S_a + S_r − S_n of the raw scores."""
    return Calibration(np.zeros((4, n_modes)), np.ones((4, n_modes)), np.ones(4), compressed=False)


def _evidence(normals: np.ndarray, pseudo: np.ndarray) -> np.ndarray:
    """2·AUC − 1 of each column, pseudo-anomalies against normals."""
    above = (pseudo[:, None] > normals[None]).mean((0, 1))
    below = (pseudo[:, None] < normals[None]).mean((0, 1))
    return above - below
