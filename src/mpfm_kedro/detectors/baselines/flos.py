"""FLOS: a focal loss against the imbalance of normals and known anomalies."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector, Inputs, TopPositions

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
        """(B, H', W', C) → (B, 1)."""
        return self.top(maps) + self.offset


class FLOS(GradientDetector):
    """DevNet's network with an offset, trained by the binary focal loss; the score is the logit.

    The backbone is frozen here and tuned in the published comparisons. Pseudo-anomalies are not used.
    """

    name: ClassVar[str] = "FLOS"
    learning_rate: ClassVar[float] = 3e-2

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """One logit per image."""
        return TopPositionsLogit(inputs[0].shape[-1])

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Focal loss of (B, 1)."""
        return focal_loss(output[:, 0], group != NORMAL)
