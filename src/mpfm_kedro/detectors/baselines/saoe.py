"""SAOE: a classifier that also sees synthetic anomalies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import GradientDetector, TopPositions
from mpfm_kedro.detectors.inputs import TrainingInput


class ThreeWay(nn.Module):
    """Logits of normal, seen and pseudo: zero, and the top positions' signed scores of the two kinds of anomalies."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.top = TopPositions(channels, 2, absolute=False)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, H', W', C) → (B, 3)."""
        return nn.functional.pad(self.top(maps), (1, 0))


class SAOE(GradientDetector):
    """Cross-entropy of normal, seen and pseudo; the score is log p(not normal) − log p(normal).

    Pseudo-anomalies are its synthetic anomalies. Exposure to outliers, images of other datasets, is omitted: a run has
    none. The backbone is frozen here and tuned in the published comparisons.
    """

    name: ClassVar[str] = "SAOE"
    differs: ClassVar[str] = "no outlier exposure: a run has no images of other datasets"
    learning_rate: ClassVar[float] = 3e-2
    uses_pseudo: ClassVar[bool] = True

    def network(self, inputs: list[TrainingInput], n_normals: int) -> nn.Module:
        """Three logits per image."""
        return ThreeWay(inputs[0].shape[-1])

    @classmethod
    def network_like(cls, stored: Mapping[str, Tensor]) -> nn.Module:
        """C channels."""
        return ThreeWay(stored["top.linear.weight"].shape[1])

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy of (B, 3)."""
        return nn.functional.cross_entropy(output, group)

    def anomaly_score(self, output: Tensor) -> Tensor:
        """Log-odds, (B, 3) → (B,)."""
        return output[:, 1:].logsumexp(1) - output[:, 0]
