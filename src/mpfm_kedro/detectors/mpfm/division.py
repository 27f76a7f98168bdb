"""The training data of MPFM: what is fitted, and the normals that are held back from fitting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import TrainingData


@dataclass(frozen=True)
class Division:
    """Features by their part in the fit; nothing is fitted to held-back normals but shrinkage and calibration."""

    normals: FeatureRows
    pseudo: FeatureRows
    anomalies: FeatureRows
    held_back: FeatureRows
    held_back_pseudo: FeatureRows


def divide(data: TrainingData, held_back_share: float, seed: int) -> Division:
    """Hold back a share of the normals, drawn by the seed, and the pseudo-anomalies made of them."""
    n = len(data.normals)
    order = np.random.default_rng(seed).permutation(n)
    n_held_back = max(1, round(held_back_share * n))
    held_back, fitted = np.sort(order[:n_held_back]), np.sort(order[n_held_back:])
    return Division(
        normals=_restrict(data.normals, fitted),
        pseudo=_restrict(data.pseudo, fitted),
        anomalies=data.anomalies,
        held_back=_restrict(data.normals, held_back),
        held_back_pseudo=_restrict(data.pseudo, held_back),
    )


def _restrict(rows: FeatureRows, chosen: np.ndarray) -> FeatureRows:
    """The rows made of chosen normals; ``source`` becomes the position among these."""
    own = rows.take(np.flatnonzero(np.isin(rows.source, chosen)))
    return FeatureRows(own.pooled, own.maps, own.rows, np.searchsorted(chosen, own.source))
