"""From four scores of different scale to one: standardised on unseen normals, then weighed on unseen evidence.

Every score of the evidence comes from a model that was fitted without the image. The weights are those of a logistic
regression of known anomalies against normals with a Gaussian prior, which rules where there is little evidence. Each
mode has weights of its own: what a head has learned in one mode says little about the anomalies of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.closed_form import ClosedScores, CrossFitted, unpack
from mpfm_kedro.detectors.mpfm.learned import unpack_heads
from mpfm_kedro.detectors.pieces import piece_name

PARTS = ("g", "a", "r", "n")
SIGNS = np.array([1.0, 1.0, 1.0, -1.0])
LEARNED = np.array([False, True, False, True])
LOCAL = np.array([False, True, True, False])
EVERY = np.array([True] * 4)
MIN_NORMALS_OF_A_MODE = 8
PRIOR_SPREAD = 1.0
PRIOR = np.array([0.5, 1.0, 1.5, 1.0])  # the weights before any evidence; those of learned scores times M / (M + 3)
ANOMALIES_OF_THE_PRIOR = 3.0
LENGTH = 2.0  # of the weights together, as of four weights of 1


@dataclass(frozen=True)
class Calibration:
    """Centre and spread of each score on unseen normals, by mode, and the weights of the sum.

    A score's level differs from mode to mode (volumes of the modes, what the heads learned of the modes' looks).
    Standardising within the mode gives each score the same level and spread in every mode, and weights of one length
    about the same spread of their sum.

    Args:
        center: (4, J).
        spread: (4, J).
        weight: (4, J), not negative.
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
        return self.shares(parts, mode).sum(1)

    def shares(self, parts: np.ndarray, mode: np.ndarray) -> np.ndarray:
        """What each of the four scores adds to the sum, (n, 4)."""
        return self.standardise(parts, mode) * (SIGNS * self.weight[:, mode].T)

    def fuse_positions(self, a: np.ndarray, r: np.ndarray, mode: np.ndarray) -> np.ndarray:
        """w_a S_a + w_r S_r with the scores of each position in place of the top mean, (n, H', W') each.

        What the sum would be, but for S_g and S_n, if all top positions were like this one.
        """
        positions = [np.zeros_like(a), a, r, np.zeros_like(a)]
        flat = np.stack(positions, axis=-1).reshape(-1, len(PARTS))
        return self.shares(flat, np.repeat(mode, a[0].size))[:, LOCAL].sum(1).reshape(a.shape)


@dataclass(frozen=True)
class Evidence:
    """Scores of images that nothing was fitted to: parts (n, 4), modes (n,), what each counts (n,).

    A normal counts 1 over all rounds that score it, a known anomaly 1 over all of its views.
    """

    parts: np.ndarray
    mode: np.ndarray
    count: np.ndarray


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Calibrate the earlier pieces of all backbones together; only the named scores get a weight."""
    counted = np.array([part in parameters["scores"] for part in PARTS])
    backbones = range(parameters["n_backbones"])
    closed_forms = [unpack(earlier[piece_name("closed_form", number)]) for number in backbones]
    n_modes = [each.final.modes.n_modes for each in closed_forms]
    if parameters["fusion"] == "printed":
        calibrations = [plain_sum(own, counted) for own in n_modes]
    else:
        learned = "heads" in earlier
        evidence = [
            gather_evidence(data.of_backbone(number), closed, earlier[piece_name("heads", number)], context)
            if learned
            else unsupervised_evidence(closed)
            for number, closed in enumerate(closed_forms)
        ]
        calibrations = calibrate(evidence, n_modes, data.n_known if learned else 0, counted)
        if "flow" in earlier:
            calibrations[0] = with_flow(calibrations[0], earlier["flow"].tensors["normals"].numpy(), closed_forms[0])
    return pack(calibrations)


def gather_evidence(
    data: TrainingData, closed_forms: CrossFitted, heads: Artefact, context: Context
) -> tuple[Evidence, Evidence]:
    """Normals and known anomalies with their views, each scored by the models of the rounds that leave it out."""
    learned = unpack_heads(heads, closed_forms.final.standardiser)
    learns = {name: value.numpy() for name, value in heads.part("learns").items()}
    of_normals, of_anomalies = heads.tensors["normals"].numpy(), learned.score(data.anomalies, context.device)
    n_without, n_rounds = len(closed_forms.without), len(learns["normals"]) - 1
    unseen_fold = np.concatenate([np.full(len(closed_forms.positions(f)), f) for f in range(n_without)])
    rounds_of_fold = np.bincount(np.arange(n_rounds) % n_without)
    views_of = np.bincount(data.anomalies.source)[data.anomalies.source]
    normals, anomalies = [], []
    for number in range(n_rounds):
        fold = number % n_without
        own = unseen_fold == fold
        learned_scores = of_normals[closed_forms.positions(fold), number]
        normals.append(_evidence(closed_forms.unseen, own, learned_scores, 1 / rounds_of_fold[fold]))
        left_out = np.flatnonzero(~learns["anomalies"][number])
        closed = closed_forms.without[fold].to(context.device).score(data.anomalies.take(left_out))
        learned_scores = of_anomalies[left_out, number]
        anomalies.append(_evidence(closed, np.arange(len(left_out)), learned_scores, 1 / views_of[left_out]))
    return _joined(normals), _joined(anomalies)


def unsupervised_evidence(closed_forms: CrossFitted) -> tuple[Evidence, Evidence]:
    """Unseen normals by the closed forms; no anomaly is known."""
    unseen = closed_forms.unseen
    every = np.ones(len(unseen.g), dtype=bool)
    normals = _evidence(unseen, every, np.zeros((len(every), 2)), 1.0)
    return normals, Evidence(normals.parts[:0], normals.mode[:0], normals.count[:0])


def calibrate(
    evidence: list[tuple[Evidence, Evidence]], n_modes: list[int], n_known: int, counted: np.ndarray = EVERY
) -> list[Calibration]:
    """The calibration of each backbone; in each of its modes the weights of all backbones are fitted at once.

    The known anomalies of all other modes together count at most as one of the mode's own. Each backbone has its own
    modes, and takes its weights from the fit of its mode. The weights of a fit have one length, so that a mode with
    more evidence has no larger scores; scores that are not counted have none and take no part in it. Evidence against
    every score decides nothing: the weights are then those of the prior.

    Args:
        evidence: of normals and of anomalies, by backbone.
        n_modes: J of each backbone.
        n_known: M.
        counted: which of the four scores are added.
    """
    flat = [standardisation(normals, own) for (normals, _), own in zip(evidence, n_modes, strict=True)]
    normals, anomalies = (
        np.concatenate([each.standardise(e.parts, e.mode) * SIGNS for each, e in zip(flat, own, strict=True)], axis=1)
        for own in zip(*evidence, strict=True)
    )
    added, found = np.tile(counted, len(flat)), []
    for number, (each, (of_normals, of_anomalies)) in enumerate(zip(flat, evidence, strict=True)):
        weight = np.empty_like(each.weight)
        for j in range(n_modes[number]):
            count, known = counted_in_mode(of_anomalies, j, n_known)
            prior = PRIOR * np.where(LEARNED, known / (known + ANOMALIES_OF_THE_PRIOR), 1.0) / len(flat)
            before = np.tile(prior, len(flat))[added]
            weights = stacked_weights(normals[:, added], of_normals.count, anomalies[:, added], count, before)
            weights = weights if weights.any() else before
            fitted = np.zeros(len(added))
            fitted[added] = weights * LENGTH / max(float(np.linalg.norm(weights)), 1e-9)
            weight[:, j] = np.split(fitted, len(flat))[number]
        found.append(replace(each, weight=weight))
    return found


def counted_in_mode(anomalies: Evidence, mode: int, n_known: int) -> tuple[np.ndarray, float]:
    """What each anomaly of the evidence counts in a mode (m,), and how many of the M known ones count there.

    Those of the mode count as ever, the others together as one or less. A single known anomaly, which is no evidence,
    thus counts as one in every mode; of several each is in the evidence.
    """
    own = anomalies.mode == mode
    known = anomalies.count[own].sum()
    others = n_known - known
    return anomalies.count * np.where(own, 1.0, 1 / max(1.0, others)), known + min(1.0, others)


def standardisation(normals: Evidence, n_modes: int) -> Calibration:
    """Centre and spread on normals, in their modes where there are enough; all weights are 1."""
    center = np.repeat(normals.parts.mean(0)[:, None], n_modes, axis=1)
    spread = np.repeat(normals.parts.std(0)[:, None], n_modes, axis=1)
    for j in range(n_modes):
        own = normals.mode == j
        if normals.count[own].sum() >= MIN_NORMALS_OF_A_MODE:
            center[:, j], spread[:, j] = normals.parts[own].mean(0), normals.parts[own].std(0)
    return Calibration(center, np.where(spread > 1e-9, spread, 1.0), np.ones_like(center))


def with_flow(calibration: Calibration, g: np.ndarray, closed_forms: CrossFitted) -> Calibration:
    """With centre and spread of a trained S_g of the normals (n,), each by its mode; the weight stays."""
    center, spread = calibration.center.copy(), calibration.spread.copy()
    for j in range(center.shape[1]):
        own = g[closed_forms.labels == j]
        center[0, j], spread[0, j] = own.mean(), max(own.std(), 1e-9)
    return replace(calibration, center=center, spread=spread)


def stacked_weights(
    normals: np.ndarray, normal_count: np.ndarray, anomalies: np.ndarray, anomaly_count: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Weights w ≥ 0 of the scores: logistic regression with the prior N(prior, 1) on w.

    Minimises Σ_i c_i log(1 + exp(∓(w · x_i + b))) + ‖w − prior‖² / 2 over w ≥ 0 and b; anomalies count 1 each, with all
    of their views, and normals as much as the anomalies together.

    Args:
        normals: standardised scores, higher for anomalies, (n, k): four of each backbone.
        normal_count: what each counts (n,).
        anomalies: (m, k).
        anomaly_count: (m,).
        prior: the weights without evidence (k,).
    """
    total = anomaly_count.sum()
    if total == 0:
        return prior
    x = np.concatenate([normals, anomalies])
    sign = np.repeat([1.0, -1.0], [len(normals), len(anomalies)])
    count = np.concatenate([normal_count * total / normal_count.sum(), anomaly_count])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = parameters[:-1], parameters[-1]
        logit = sign * (x @ weight + bias)
        slope = count * sign / (1 + np.exp(-logit))
        deviation = (weight - prior) / PRIOR_SPREAD
        value = count @ np.logaddexp(0, logit) + 0.5 * deviation @ deviation
        return value, np.append(slope @ x + deviation / PRIOR_SPREAD, slope.sum())

    bounds = [(0, None)] * len(prior) + [(None, None)]
    return minimize(loss, np.append(prior, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x[:-1]


def plain_sum(n_modes: int, counted: np.ndarray = EVERY) -> Calibration:
    """The printed fusion: S_g + S_a + S_r − S_n of the raw scores, as far as they are counted."""
    shape = len(PARTS), n_modes
    weight = np.repeat(counted[:, None].astype(float), n_modes, axis=1)
    return Calibration(np.zeros(shape), np.ones(shape), weight, compressed=False)


def pack(calibrations: list[Calibration]) -> Artefact:
    """The calibrations of all backbones as tensors and plain values."""
    tensors = {
        f"{number}.{name}": torch.from_numpy(np.ascontiguousarray(getattr(calibration, name)))
        for number, calibration in enumerate(calibrations)
        for name in ("center", "spread", "weight")
    }
    return Artefact(tensors, {"n_backbones": len(calibrations), "compressed": calibrations[0].compressed})


def unpack_calibrations(artefact: Artefact) -> list[Calibration]:
    """The inverse of ``pack``."""
    parts = [artefact.part(str(number)) for number in range(artefact.details["n_backbones"])]
    arrays = [{name: tensor.numpy() for name, tensor in part.items()} for part in parts]
    return [Calibration(**each, compressed=artefact.details["compressed"]) for each in arrays]


def _evidence(closed: ClosedScores, own: np.ndarray, learned: np.ndarray, count: np.ndarray | float) -> Evidence:
    """S_g, S_a, S_r, S_n of some images, from the closed form and the heads' S_a and S_n (n, 2)."""
    parts = np.stack([closed.g[own], learned[:, 0], closed.r[own], learned[:, 1]], axis=1)
    return Evidence(parts, closed.mode[own], np.broadcast_to(count, len(parts)))


def _joined(rounds: list[Evidence]) -> Evidence:
    columns = zip(*((each.parts, each.mode, each.count) for each in rounds), strict=True) if rounds else ()
    return Evidence(*(np.concatenate(values) for values in columns))
