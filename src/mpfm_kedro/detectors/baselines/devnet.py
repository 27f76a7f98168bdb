"""DevNet: the scores of known anomalies deviate from what a normal prior expects of normals."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector, Inputs, TopPositions

PRIOR_DRAWS = 5000
MARGIN = 5.0


def deviation_loss(scores: Tensor, abnormal: Tensor, generator: torch.Generator) -> Tensor:
    """Mean of |dev| for normals and max(0, 5 − dev) for anomalies; dev = (score − mean) / std of draws of N(0, 1).

    Args:
        scores: (B,).
        abnormal: which of them should deviate, (B,), bool.
        generator: of the draws.
    """
    draws = torch.randn(PRIOR_DRAWS, generator=generator)
    deviation = (scores - float(draws.mean())) / float(draws.std())
    return torch.where(abnormal, (MARGIN - deviation).clamp_min(0), deviation.abs()).mean()


class DevNet(GradientDetector):
    """Top positions of one 1×1 convolution on F, trained by the deviation loss; the score is theirs.

    The backbone is frozen here and tuned in the published method. Pseudo-anomalies are not used, as published.
    """

    name: ClassVar[str] = "DevNet"
    learning_rate: ClassVar[float] = 3e-2

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """One score per image."""
        return TopPositions(inputs[0].shape[-1])

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Deviation loss of (B, 1)."""
        return deviation_loss(output[:, 0], group != NORMAL, generator)
