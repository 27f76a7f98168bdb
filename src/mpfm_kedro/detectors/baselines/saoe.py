"""SAOE: a classifier that also sees synthetic anomalies."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import GradientDetector, Inputs, TopPositions


class SAOE(GradientDetector):
    """Cross-entropy of normal, seen and pseudo; the score is log p(not normal) − log p(normal).

    The logits are zero, and the top positions' signed scores of the two kinds of anomalies. Pseudo-anomalies are its
    synthetic anomalies. Exposure to outliers, images of other datasets, is omitted: a run has none. The backbone is
    frozen here and tuned in the published comparisons.
    """

    name: ClassVar[str] = "SAOE"
    differs: ClassVar[str] = "no outlier exposure: a run has no images of other datasets"
    learning_rate: ClassVar[float] = 3e-2
    uses_pseudo: ClassVar[bool] = True

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """Logits of seen and pseudo."""
        return TopPositions(inputs[0].shape[-1], 2, absolute=False)

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy of (B, 2) and a logit of zero for normals."""
        return nn.functional.cross_entropy(nn.functional.pad(output, (1, 0)), group)

    def anomaly_score(self, output: Tensor) -> Tensor:
        """Log-odds, (B, 2) → (B,)."""
        return output.logsumexp(1)
