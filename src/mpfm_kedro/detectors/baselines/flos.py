"""FLOS: a focal loss against the imbalance of normals and known anomalies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector, TopPositions
from mpfm_kedro.detectors.inputs import TrainingInput

FOCUS = 2.0


def focal_loss(logits: Tensor, abnormal: Tensor) -> Tensor:
    """Mean of −(1 − p)² log p, p the probability of the true class; logits and abnormal (bool) are (B,)."""
    log_p = nn.functional.logsigmoid(torch.where(abnormal, logits, -logits))
    return -((1 - log_p.exp()) ** FOCUS * log_p).mean()


class TopPositionsLogit(nn.Module):
    """S + β: the top positions' score S is never negative, and the logit of a normal has to be."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.top = TopPositions(channels)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, maps: Tensor) -> Tensor:
        """(B, H', W', C) → (B,)."""
        return self.top(maps)[:, 0] + self.offset


class FLOS(GradientDetector):
    """DevNet's network with an offset, trained by the binary focal loss; the score is the logit.

    The backbone is frozen here and tuned in the published comparisons. Pseudo-anomalies are not used.
    """

    name: ClassVar[str] = "FLOS"
    learning_rate: ClassVar[float] = 3e-2

    def network(self, inputs: list[TrainingInput], n_normals: int) -> nn.Module:
        """One logit per image."""
        return TopPositionsLogit(inputs[0].shape[-1])

    @classmethod
    def network_like(cls, stored: Mapping[str, Tensor]) -> nn.Module:
        """C channels."""
        return TopPositionsLogit(stored["top.linear.weight"].shape[1])

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Focal loss of (B,)."""
        return focal_loss(output, group != NORMAL)

    def anomaly_score(self, output: Tensor) -> Tensor:
        """The logit itself."""
        return output
