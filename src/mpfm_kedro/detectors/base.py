"""The one interface of all detectors: MPFM, rebuilt baselines and references.

A detector is fitted in pieces, each stored under its own key and shared by all trials that need it. Most detectors
have one piece; MPFM has three (prototypes, training, calibration), two of them once for each backbone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.pieces import Piece, Specification

DEFAULT_MEMORY = 2 << 30


@dataclass(frozen=True)
class TrainingData:
    """What a run may learn from.

    Args:
        normals: all training normals.
        pseudo: pseudo-anomalies (CutMix) of the normals; ``source`` is the position of the normal.
        anomalies: the original known anomalies (the first M rows), then their augmented views; ``source`` is the
            position of the known anomaly.
    """

    normals: FeatureRows
    pseudo: FeatureRows
    anomalies: FeatureRows

    def of_backbone(self, number: int) -> TrainingData:
        """The same images in one of the backbones, 0 is the first."""
        return TrainingData(*(rows.of_backbone(number) for rows in (self.normals, self.pseudo, self.anomalies)))

    @property
    def n_known(self) -> int:
        """M, the number of known anomalies."""
        return int(self.anomalies.source.max(initial=-1)) + 1

    @property
    def known(self) -> FeatureRows:
        """The original known anomalies, without augmented views."""
        return self.anomalies.take(np.arange(self.n_known))


@dataclass(frozen=True)
class Artefact:
    """What is stored of a fitted piece: tensors, and everything else that JSON can hold."""

    tensors: dict[str, Tensor]
    details: dict[str, Any] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix.``, without it."""
        start = f"{prefix}."
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


@dataclass(frozen=True)
class Scores:
    """Scores of n samples, higher for anomalies.

    Args:
        score: (n,).
        parts: the four scores S_g, S_a, S_r, S_n that make it, (n, 4); MPFM alone has them.
        mode: the most probable mode of each sample, (n,); MPFM alone has modes.
    """

    score: np.ndarray
    parts: np.ndarray | None = None
    mode: np.ndarray | None = None


class Checkpoint(Protocol):
    """Where an interrupted fit stores its state."""

    def load(self) -> Artefact | None:
        """The last state, if there is one."""

    def save(self, state: Artefact) -> None:
        """Replace the state."""


@dataclass(frozen=True)
class Context:
    """Where a piece is fitted: device, bytes of memory it may use, and a checkpoint to resume from."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    memory: int = DEFAULT_MEMORY
    checkpoint: Checkpoint | None = None


class Detector(ABC):
    """A detector on stored features of the frozen backbone.

    Class attributes:
        name: its row in the tables.
        kind: ours, baseline (rebuilt from a paper) or reference.
        differs: how it differs from what its paper describes, for the tables.
        supervised: whether it learns from known anomalies; one that does not is shared by all runs with the same
            normals.
        random: whether the seed matters.
        version: of its numbers: raise it when a change of the code changes them (tests/test_golden_numbers.py).
        budget: what is spent on it, in words, for the tables; ``{steps}`` is the number of training steps.

    Args:
        steps: of a detector that is trained step by step; others ignore it.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "reference"
    differs: ClassVar[str] = ""
    supervised: ClassVar[bool]
    random: ClassVar[bool]
    version: ClassVar[int] = 1
    budget: ClassVar[str]

    def __init__(self, steps: int = 1000) -> None:
        self.steps = steps

    @abstractmethod
    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Learn from a run's training data; nothing else decides anything."""

    @abstractmethod
    def score_samples(self, rows: FeatureRows) -> Scores:
        """Score samples by their features."""

    @abstractmethod
    def state(self) -> Artefact:
        """What was learned, to be stored."""

    @classmethod
    @abstractmethod
    def restore(cls, state: Artefact, device: torch.device) -> Self:
        """A fitted detector from what was stored of it; the inverse of ``state``."""

    @classmethod
    def pieces(cls, steps: int) -> tuple[Piece, ...]:
        """The pieces of the fit: one, unless a detector says otherwise."""
        place = f"{cls.__module__}:{cls.__qualname__}"
        parameters = {"steps": steps} if "{steps}" in cls.budget else {}
        return (
            Piece(
                name=cls.__name__.lower(),
                fit=f"{place}.fit_piece",
                version=cls.version,
                parameters=parameters,
                supervised=cls.supervised,
                random=cls.random,
            ),
        )

    @classmethod
    def specify(cls, steps: int) -> Specification:
        """The detector as plain data: one row of a table."""
        return Specification(
            name=cls.name,
            kind=cls.kind,
            pieces=cls.pieces(steps),
            load=f"{cls.__module__}:{cls.__qualname__}.load",
            version=cls.version,
            budget=cls.budget.format(steps=f"{steps:,}"),
            note=cls.differs,
        )

    @classmethod
    def fit_piece(
        cls,
        data: TrainingData,
        earlier: Mapping[str, Artefact],
        parameters: Mapping[str, Any],
        seed: int,
        context: Context,
    ) -> Artefact:
        """Fit the detector's only piece."""
        return cls(**parameters).fit(data, seed, context).state()

    @classmethod
    def load(cls, pieces: Mapping[str, Artefact], device: torch.device) -> Self:
        """The fitted detector from all of its pieces."""
        (state,) = pieces.values()
        return cls.restore(state, device)
