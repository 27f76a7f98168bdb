"""What is learned from known anomalies: the heads M_a and M_n, each with and without some of the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.inputs import StandardisedInput
from mpfm_kedro.detectors.mpfm.closed_form import CrossFitted, Standardiser, unpack
from mpfm_kedro.detectors.mpfm.heads import TopPositions, Training, fit_linear, fit_top_positions
from mpfm_kedro.detectors.mpfm.mode_fitting import FOLDS
from mpfm_kedro.detectors.pieces import piece_name

FINAL = -1  # the head that leaves nothing out is the last


@dataclass(frozen=True)
class Rounds:
    """What each head but the last leaves out: round h leaves out one fold of the normals and one of the anomalies.

    Args:
        normals: which normals each head learns from (H, n), bool.
        anomalies: which known anomalies and views (H, m), bool.
    """

    normals: np.ndarray
    anomalies: np.ndarray

    @classmethod
    def plan(cls, fold: np.ndarray, n_left_out: int, source: np.ndarray, seed: int) -> Rounds:
        """Every known anomaly is left out once, with all of its views; a single one never, for nothing would be left.

        Args:
            fold: of the normals (n,).
            n_left_out: so many of their folds are left out in turn.
            source: the known anomaly of each row (m,).
            seed: of the folds of the anomalies.
        """
        n_known = int(source.max(initial=-1)) + 1
        n_folds = min(FOLDS, n_known) if n_known > 1 else 0
        order = np.random.default_rng(seed).permutation(n_known) % n_folds if n_folds else np.full(n_known, FOLDS)
        n_rounds = max(n_folds, n_left_out)
        normals = np.ones((n_rounds + 1, len(fold)), dtype=bool)
        anomalies = np.ones((n_rounds + 1, len(source)), dtype=bool)
        for number in range(n_rounds):
            normals[number] = fold != number % n_left_out
            anomalies[number] = order[source] != number
        return cls(normals, anomalies)


@dataclass(frozen=True)
class Heads:
    """H heads of each kind, the last of which learned from everything.

    Args:
        top_positions: M_a.
        weight: of M_n (H, d), for known anomalies; S_n is its negative.
        bias: likewise (H,).
        standardiser: of the features.
    """

    top_positions: TopPositions
    weight: np.ndarray
    bias: np.ndarray
    standardiser: Standardiser

    def score(self, rows: FeatureRows, device: torch.device) -> np.ndarray:
        """S_a and S_n of each image by each head, (n, H, 2)."""
        return np.stack([self.top_positions.score(rows, device), self.normality(rows)], axis=2)

    def normality(self, rows: FeatureRows) -> np.ndarray:
        """S_n of each image by each head, (n, H)."""
        return -(self.standardiser.z(rows).astype(np.float64) @ self.weight.T + self.bias)

    def head(self, number: int = FINAL) -> Heads:
        """The heads of one round alone, by default those that learned from everything."""
        own = [number]
        return Heads(self.top_positions.head(number), self.weight[own], self.bias[own], self.standardiser)

    def pack(self, unseen: np.ndarray, rounds: Rounds, details: dict[str, Any]) -> Artefact:
        """As tensors and plain values, with what the heads say of all normals (n, H, 2)."""
        arrays = {"n.weight": self.weight, "n.bias": self.bias, "normals": unseen}
        arrays |= {f"learns.{name}": value for name, value in vars(rounds).items()}
        tensors: dict[str, Tensor] = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in arrays.items()}
        tensors |= {"a.weight": self.top_positions.weight, "a.bias": self.top_positions.bias}
        return Artefact(tensors, {"shares": self.top_positions.shares, **details})


def unpack_heads(artefact: Artefact, standardiser: Standardiser) -> Heads:
    """The heads of an artefact."""
    top_positions = TopPositions(
        **artefact.part("a"),
        center=standardiser.map_center,
        spread=standardiser.map_spread,
        shares=artefact.details["shares"],
    )
    linear = {name: value.numpy() for name, value in artefact.part("n").items()}
    return Heads(top_positions, **linear, standardiser=standardiser)


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Fit all heads, and score all normals by them."""
    data = data.of_backbone(parameters["backbone"])
    closed_forms = unpack(earlier[piece_name("closed_form", parameters["backbone"])])
    rounds = Rounds.plan(closed_forms.fold, len(closed_forms.without), data.anomalies.source, seed)
    heads, history = fit_heads(data, closed_forms, rounds, parameters, seed, context)
    return heads.pack(heads.score(data.normals, context.device), rounds, {"history": history})


def fit_heads(
    data: TrainingData,
    closed_forms: CrossFitted,
    rounds: Rounds,
    parameters: Mapping[str, Any],
    seed: int,
    context: Context,
) -> tuple[Heads, list[dict[str, float]]]:
    """All heads of all rounds, and the loss of M_a along its training; where no anomaly is known, all are zero."""
    standardiser = closed_forms.final.standardiser
    learns = rounds.normals, rounds.anomalies
    if len(data.anomalies) == 0:
        return _zero_heads(standardiser, len(rounds.normals)), []
    training = Training(
        shares=[share for share in parameters["head_top_shares"] for _ in range(parameters["head_members"])],
        steps=parameters["head_steps"],
        batch=(parameters["normals_per_batch"], parameters["anomalies_per_batch"]),
        seed=seed,
    )
    source = StandardisedInput("maps", standardiser.map_center, standardiser.map_spread)
    top_positions, losses = fit_top_positions(data.normals, data.anomalies, learns, source, training, context)
    weight, bias = fit_linear(standardiser.z(data.normals), standardiser.z(data.anomalies), learns)
    if parameters["normality_target"] == "printed":  # M_n learns y, and is subtracted all the same
        weight, bias = -weight, -bias
    history = [{"epoch": number + 1, "score_a": loss} for number, loss in enumerate(losses)]
    return Heads(top_positions, weight, bias, standardiser), history


def _zero_heads(standardiser: Standardiser, n_heads: int) -> Heads:
    map_scale = standardiser.map_center, standardiser.map_spread
    weight, bias = torch.zeros(n_heads, 1, len(map_scale[0])), torch.zeros(n_heads, 1)
    top_positions = TopPositions(weight, bias, *map_scale, shares=[1.0])
    return Heads(top_positions, np.zeros((n_heads, len(standardiser.pooled_center))), np.zeros(n_heads), standardiser)
