"""MLEP: an embedding that keeps known anomalies a margin away from normals, and a prediction from it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector, Inputs

HIDDEN = 256
EMBEDDED = 64
MARGIN = 1.0


class EmbeddedPrediction(nn.Module):
    """x → e, two linear maps with a rectifier in between; logit = w · e + b."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(columns, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EMBEDDED))
        self.predict = nn.Linear(EMBEDDED, 1)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """(B, d) → embeddings (B, 64) and logits (B,)."""
        embedding = self.embed(pooled)
        return embedding, self.predict(embedding)[:, 0]


def margin_loss(normals: Tensor, anomalies: Tensor) -> Tensor:
    """Mean over all pairs of max(0, 1 + ‖e_i − e_i'‖ − ‖e_i − e_j‖): normal i, the next normal i', anomaly j.

    Args:
        normals: embeddings (n, E).
        anomalies: embeddings (m, E).
    """
    near = (normals - normals.roll(1, 0)).square().sum(1).clamp_min(1e-12).sqrt()
    far = torch.cdist(normals, anomalies)
    return (MARGIN + near[:, None] - far).clamp_min(0).mean()


class MLEP(GradientDetector):
    """Margin loss on embeddings of pooled features plus the logistic loss of the prediction; the score is its logit.

    The published method predicts the next frame of a video; a still has none, so what is predicted is whether an image
    is abnormal. Pseudo-anomalies are not used.
    """

    name: ClassVar[str] = "MLEP"
    differs: ClassVar[str] = "predicts whether an image is abnormal in place of the next frame of a video"
    learning_rate: ClassVar[float] = 1e-3
    reads: ClassVar[tuple[str, ...]] = ("pooled",)

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """Embedding and prediction."""
        return EmbeddedPrediction(inputs[0].shape[-1])

    def loss(self, output: tuple[Tensor, Tensor], group: Tensor, generator: torch.Generator) -> Tensor:
        """Margin and prediction, weighted alike."""
        (embedding, logit), normal = output, group == NORMAL
        margin = margin_loss(embedding[normal], embedding[~normal])
        return margin + nn.functional.binary_cross_entropy_with_logits(logit, (~normal).float())

    def anomaly_score(self, output: tuple[Tensor, Tensor]) -> Tensor:
        """The logit, (B,)."""
        return output[1]
