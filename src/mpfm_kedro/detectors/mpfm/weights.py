"""The weights of the scores: logistic regression of left-out known anomalies against held-out normals, with a prior.

The prior rules where there is little evidence. Each mode has weights of its own: what is learned in one mode says
little about the anomalies of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from mpfm_kedro.detectors.mpfm.calibration import MEMBERS, SCORES

PRIOR_SPREAD = 0.7
PRIOR_WEIGHTS = np.array([0.5, 0.5, 1.0, 1.5, 1.5, 1.0])  # of a score before any evidence
STEP_0 = np.array([True, False, False, True, False, False])  # S_g and S_r before training
ANOMALIES_OF_THE_PRIOR = 3.0
WEIGHT_NORM = 2.0  # of the four parts together, as of four weights of 1
ALL_SCORES = np.ones(len(SCORES), dtype=bool)


def counted_scores(parts: list[str], step_0: bool) -> np.ndarray:
    """Which scores are added: those of the named parts, at step 0 without what was trained of S_g and S_r, (S,)."""
    return np.array([name[0] in parts and not (step_0 and f"{name}0" in SCORES) for name in SCORES])


def prior_weights(n_known: float, counted: np.ndarray = ALL_SCORES) -> np.ndarray:
    """What is learned counts M / (M + 3), and what it starts from the rest of it, (S,).

    Where only one of a trained score and its step 0 is counted, it has the weight of both.
    """
    learned = n_known / (n_known + ANOMALIES_OF_THE_PRIOR)
    share = np.where(STEP_0, 1 - learned, learned)
    for members in MEMBERS:
        if len(members) > 1 and counted[members].sum() == 1:
            share[members] = 1.0
    return PRIOR_WEIGHTS * share


class Calibrated(NamedTuple):
    """Calibrated scores of one backbone, of images that they were not fitted to."""

    normals: Tensor  # t of held-out normals (n, S)
    anomalies: Tensor  # t of left-out known anomalies and their views (m, S)
    mode: Tensor  # of these anomalies (m,)
    weight: Tensor  # what each of them counts (m,)
    n_modes: int  # J


def fit_weights(backbones: Sequence[Calibrated], n_known: int, counted: np.ndarray = ALL_SCORES) -> list[Tensor]:
    """The weights (S, J) of each backbone; in each of its modes the weights of all backbones are fitted at once.

    The known anomalies of all other modes together count at most as one of the mode's own. The weights of a mode have
    one norm, so that a mode with more evidence has no larger scores; scores that are not counted (S,) take no part.
    Evidence against every score decides nothing: the weights are then those of the prior.
    """
    number, added = len(backbones), np.tile(counted, len(backbones))
    normals = torch.cat([backbone.normals for backbone in backbones], 1).double().numpy()[:, added]
    anomalies = torch.cat([backbone.anomalies for backbone in backbones], 1).double().numpy()[:, added]
    tables = []
    for index, backbone in enumerate(backbones):
        table = np.empty((len(SCORES), backbone.n_modes))
        for j in range(backbone.n_modes):
            count, known = counted_in_mode(backbone, j, n_known)
            prior = np.tile(prior_weights(known, counted) / number, number)[added]
            weights = stacked_weights(normals, anomalies, count, prior)
            fitted = np.zeros(len(added))
            fitted[added] = weights if weights.any() else prior
            by_backbone = fitted.reshape(number, -1)
            parts = np.stack([by_backbone[:, members].sum(1) for members in MEMBERS])
            table[:, j] = by_backbone[index] * WEIGHT_NORM / max(float(np.linalg.norm(parts)), 1e-9)
        tables.append(torch.from_numpy(table).float())
    return tables


def counted_in_mode(known: Calibrated, mode: int, n_known: int) -> tuple[np.ndarray, float]:
    """What each anomaly of the evidence counts in a mode (m,), and how many of the M known ones count there.

    Those of the mode count fully, the others together as one or less. A single known anomaly, which is never left out,
    thus counts as one in every mode; of several each is in the evidence.
    """
    count, in_mode = known.weight.double().numpy(), (known.mode == mode).numpy()
    of_mode = count[in_mode].sum()
    others = n_known - of_mode
    return count * np.where(in_mode, 1.0, 1 / max(1.0, others)), of_mode + min(1.0, others)


def stacked_weights(normals: np.ndarray, anomalies: np.ndarray, count: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Weights w ≥ 0 (k,) of t of all backbones, (n, k) and (m, k): logistic regression with a Gaussian prior.

    Minimises Σ_i c_i log(1 + exp(∓(w · t_i + b))) + ‖w − prior‖² / (2 · 0.7²), w ≥ 0; anomalies count c_i = ``count``,
    which is 1 each with all of their views, and normals as much as the anomalies together.
    """
    total = count.sum()
    if total == 0:
        return prior
    x = np.concatenate([normals, anomalies])
    sign = np.repeat([1.0, -1.0], [len(normals), len(anomalies)])
    counts = np.concatenate([np.full(len(normals), total / len(normals)), count])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = parameters[:-1], parameters[-1]
        logit = sign * (x @ weight + bias)
        slope = counts * sign * expit(logit)
        deviation = (weight - prior) / PRIOR_SPREAD
        value = counts @ np.logaddexp(0, logit) + 0.5 * deviation @ deviation
        return value, np.append(slope @ x + deviation / PRIOR_SPREAD, slope.sum())

    bounds = [(0, None)] * len(prior) + [(None, None)]
    return minimize(loss, np.append(prior, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x[:-1]
