"""MLEP: an embedding that keeps known anomalies a margin away from normals, and a prediction from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector
from mpfm_kedro.detectors.inputs import TrainingInput

HIDDEN = 256
EMBEDDED = 64
MARGIN = 1.0


class Embedded(NamedTuple):
    """Embeddings (B, 64) and the logits predicted from them (B,)."""

    embedding: Tensor
    logit: Tensor


class EmbeddedPrediction(nn.Module):
    """x → e, two linear maps with a rectifier in between; logit = w · e + b."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(columns, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EMBEDDED))
        self.predict = nn.Linear(EMBEDDED, 1)

    def forward(self, pooled: Tensor) -> Embedded:
        """(B, d) → embeddings and logits."""
        embedding = self.embed(pooled)
        return Embedded(embedding, self.predict(embedding)[:, 0])


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

    def network(self, inputs: list[TrainingInput], n_normals: int) -> nn.Module:
        """Embedding and prediction."""
        return EmbeddedPrediction(inputs[0].shape[-1])

    @classmethod
    def network_like(cls, stored: Mapping[str, Tensor]) -> nn.Module:
        """Columns of the first linear map."""
        return EmbeddedPrediction(stored["embed.0.weight"].shape[1])

    def loss(self, output: Embedded, group: Tensor, generator: torch.Generator) -> Tensor:
        """Margin and prediction, weighted alike."""
        normal = group == NORMAL
        margin = margin_loss(output.embedding[normal], output.embedding[~normal])
        return margin + nn.functional.binary_cross_entropy_with_logits(output.logit, (~normal).float())

    def anomaly_score(self, output: Embedded) -> Tensor:
        """The logit, (B,)."""
        return output.logit
