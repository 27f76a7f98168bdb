"""The one interface of all rivals and references: fit on a run's training features, score other features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from mpfm_kedro.model.feature_rows import FeatureRows


@dataclass(frozen=True)
class TrainingData:
    """What a run may learn from.

    Args:
        normals: all training normals.
        pseudo: pseudo-anomalies (CutMix) of the normals; ``source`` is the position of the normal.
        anomalies: the known anomalies as they are (the first M rows), then in turned views; ``source`` is the
            position of the known anomaly.
    """

    normals: FeatureRows
    pseudo: FeatureRows
    anomalies: FeatureRows

    @property
    def known(self) -> FeatureRows:
        """The known anomalies as they are, without turned views."""
        return self.anomalies.take(np.arange(int(self.anomalies.source.max(initial=-1)) + 1))


class Method(ABC):
    """A detector on stored features of the frozen backbone.

    Class attributes:
        name: its row in the tables.
        kind: rival, from a paper, or reference.
        differs: how it differs from what its paper describes, for the tables.
        supervised: whether it learns from known anomalies; results of one that does not are shared by all runs with
            the same normals.
        random: whether the seed matters.
        budget: what is spent on it, in words, for the tables; ``{steps}`` stands for the number of training steps.
        seconds: about how long fitting and scoring take, on one core, for 1,131 normals and 1,100 tested images at
            224 px; only for telling beforehand how long a comparison takes.

    Args:
        steps: of a method that is trained step by step; others have no use for it.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "reference"
    differs: ClassVar[str] = ""
    supervised: ClassVar[bool]
    random: ClassVar[bool]
    budget: ClassVar[str]
    seconds: ClassVar[float]

    def __init__(self, steps: int = 1000) -> None:
        self.steps = steps

    @abstractmethod
    def fit(self, data: TrainingData, seed: int, device: torch.device) -> None:
        """Learn from a run's training side; nothing else decides anything."""

    @abstractmethod
    def score(self, rows: FeatureRows) -> np.ndarray:
        """One number an image, higher for anomalies, (n,)."""
