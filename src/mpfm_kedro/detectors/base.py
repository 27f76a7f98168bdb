"""What all detectors share: training data, artefacts, scores, and the interface.

MPFM is fitted in three stages, whose fits are kept; of baselines and references the scores are.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows

DEFAULT_MEMORY = 2 << 30


@dataclass(frozen=True)
class TrainingData:
    """What a run may learn from: training normals, pseudo-anomalies (CutMix) of them, and known anomalies.

    The original known anomalies are the first M rows of ``anomalies``, then come their augmented views.
    """

    normals: FeatureRows
    pseudo: FeatureRows  # source: position of the normal
    anomalies: FeatureRows  # source: position of the known anomaly
    items: np.ndarray | None = None  # a number for the item of each normal and known anomaly (n + M,), or all differ

    def of_backbone(self, number: int) -> Self:
        """The same images in one of the backbones, 0 is the first."""
        normals, pseudo, anomalies = (part.of_backbone(number) for part in (self.normals, self.pseudo, self.anomalies))
        return replace(self, normals=normals, pseudo=pseudo, anomalies=anomalies)

    @property
    def normal_items(self) -> np.ndarray:
        """The item of each normal (n,)."""
        return (np.arange(len(self.normals)) if self.items is None else self.items)[: len(self.normals)]

    @property
    def anomaly_items(self) -> np.ndarray:
        """The item of each known anomaly (M,)."""
        n, m = len(self.normals), self.n_known
        return (np.arange(n + m) if self.items is None else self.items)[n : n + m]

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
    """What is stored of a fit: tensors, and everything else that JSON can hold."""

    tensors: dict[str, Tensor]
    details: dict[str, Any] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix.``, without it."""
        start = f"{prefix}."
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


@dataclass(frozen=True)
class Scores:
    """Scores of n samples, higher for anomalies; parts and mode are those of MPFM."""

    score: np.ndarray  # (n,)
    parts: np.ndarray | None = None  # the four scores S_g, S_a, S_r, S_n that make it, (n, 4)
    mode: np.ndarray | None = None  # the most probable mode of each sample, (n,)


class StateStore(Protocol):
    """Where an interrupted fit stores its state."""

    def load(self) -> Artefact | None:
        """The last state, if there is one."""

    def save(self, state: Artefact) -> None:
        """Replace the state."""


@dataclass(frozen=True)
class Context:
    """Where a fit runs: device, bytes of memory it may use, and a checkpoint to resume from."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    memory: int = DEFAULT_MEMORY
    checkpoint: StateStore | None = None


class Detector(nn.Module, ABC):
    """A detector on stored features of the frozen backbone; what it has learned is its ``state_dict()``."""

    @abstractmethod
    def score_samples(self, rows: FeatureRows) -> Scores:
        """Score samples by their features, in batches that are bounded in memory."""

    def position_scores(self, rows: FeatureRows) -> np.ndarray | None:
        """Where the score comes from, (n, H', W'); None if the detector does not localise."""
        return None


class Baseline(Detector):
    """A baseline or reference; ``forward`` gives the scores (B,) of one argument for each name in ``reads``.

    Raise the version when a change of the code changes the numbers (tests/test_golden_numbers.py). Only those that are
    trained step by step read ``steps``.
    """

    name: ClassVar[str]  # its row in the tables
    kind: ClassVar[str] = "reference"  # ours, baseline (rebuilt from a paper) or reference
    differs: ClassVar[str] = ""  # how it differs from what its paper describes, for the tables
    supervised: ClassVar[bool]  # whether it learns from known anomalies; else runs with the same normals share the fit
    random: ClassVar[bool]  # whether the seed matters
    version: ClassVar[int] = 1
    budget: ClassVar[str]  # what is spent on it, for the tables; {steps} is the number of training steps
    reads: ClassVar[tuple[str, ...]] = ("maps",)  # "pooled", (B, d), and "maps", (B, C, H', W'), in this order

    def __init__(self, steps: int = 1000) -> None:
        super().__init__()
        self.steps = steps

    @abstractmethod
    def fit(self, data: TrainingData, seed: int, context: Context) -> Self:
        """Learn from a run's training data; nothing else decides anything."""

    def bytes_per_image(self, rows: FeatureRows) -> int:
        """What a batch needs for each image while it is scored."""
        return rows.bytes_per_map

    @torch.no_grad()
    def score_samples(self, rows: FeatureRows) -> Scores:
        """Score samples by their features."""
        device, scores = next(self.buffers()).device, []
        for part in rows.slices(bytes_per_image=self.bytes_per_image(rows)):
            scores.append(self(*(read_stored(kind, rows, part).to(device) for kind in self.reads)).cpu())
        return Scores(torch.cat(scores).numpy())


def read_stored(kind: str, rows: FeatureRows, index: Any) -> Tensor:
    """Stored features of some of the images: "pooled", (B, d), or "maps", (B, C, H', W')."""
    return rows.map_batch(index) if kind == "maps" else torch.from_numpy(rows.pooled[index])
