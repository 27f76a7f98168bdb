"""DRA: disentangled heads for seen, pseudo, residual and holistic abnormality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.devnet import deviation_loss
from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, PSEUDO, SEEN, GradientDetector, TopPositions
from mpfm_kedro.detectors.inputs import TrainingInput

HIDDEN = 256
REFERENCES = 5
RESIDUAL_CHANNELS = 16


class HeadScores(NamedTuple):
    """Scores of the four heads, each (B,); the holistic one is high for normals."""

    holistic: Tensor
    seen: Tensor
    pseudo: Tensor
    residual: Tensor


class ResidualHead(nn.Module):
    """Top positions of h(r − x), r the mean map of the reference normals.

    h is a 1×1 convolution to 16 channels and a 3×3 convolution of these, batch normalisation and rectifier: the
    published 3×3 convolution of all channels, with less rank.

    Args:
        reference: r, (H', W', C).
    """

    reference: Tensor

    def __init__(self, reference: Tensor) -> None:
        super().__init__()
        self.register_buffer("reference", reference)
        self.reduce = nn.Linear(reference.shape[-1], RESIDUAL_CHANNELS, bias=False)
        self.mix = nn.Conv2d(RESIDUAL_CHANNELS, RESIDUAL_CHANNELS, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(RESIDUAL_CHANNELS)
        self.top = TopPositions(RESIDUAL_CHANNELS)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, H', W', C) → (B,)."""
        residual = self.reduce(self.reference) - self.reduce(maps)
        mixed = self.norm(self.mix(residual.permute(0, 3, 1, 2))).relu()
        return self.top(mixed.permute(0, 2, 3, 1))[:, 0]


class FourHeads(nn.Module):
    """Holistic: d–256–1 on pooled statistics; seen and pseudo: top positions of F; residual: see its head."""

    def __init__(self, columns: int, reference: Tensor) -> None:
        super().__init__()
        self.holistic = nn.Sequential(nn.Linear(columns, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.seen_and_pseudo = TopPositions(reference.shape[-1], 2)
        self.residual = ResidualHead(reference)

    def forward(self, pooled: Tensor, maps: Tensor) -> HeadScores:
        """(B, d) and (B, H', W', C) → the four scores."""
        seen, pseudo = self.seen_and_pseudo(maps).unbind(1)
        return HeadScores(self.holistic(pooled)[:, 0], seen, pseudo, self.residual(maps))


class DRA(GradientDetector):
    """Deviation loss of each head; the score is seen + pseudo + residual − holistic.

    The holistic head learns normality from all rows, the seen head from normals and known anomalies, the pseudo head
    from normals and pseudo-anomalies, the residual head from all. The references are five training normals drawn once
    by the seed, without the published pseudo-anomalies among them, so that a test score is not random. The backbone is
    frozen here and tuned in the published method, which also adds a second scale.
    """

    name: ClassVar[str] = "DRA"
    differs: ClassVar[str] = "residual head of 16 channels, one scale, references without pseudo-anomalies"
    learning_rate: ClassVar[float] = 1e-2
    reads: ClassVar[tuple[str, ...]] = ("pooled", "maps")
    uses_pseudo: ClassVar[bool] = True

    def network(self, inputs: list[TrainingInput], n_normals: int) -> nn.Module:
        """Four heads; the references are drawn at random."""
        pooled, maps = inputs
        references = maps[torch.randperm(n_normals)[:REFERENCES]]
        return FourHeads(pooled.shape[-1], references.float().mean(0))

    @classmethod
    def network_like(cls, stored: Mapping[str, Tensor]) -> nn.Module:
        """Columns of the holistic head, and the references' mean map."""
        return FourHeads(stored["holistic.0.weight"].shape[1], torch.empty_like(stored["residual.reference"]))

    def loss(self, output: HeadScores, group: Tensor, generator: torch.Generator) -> Tensor:
        """The sum over the heads."""
        abnormal = group != NORMAL
        without_pseudo, without_seen = group != PSEUDO, group != SEEN
        return (
            deviation_loss(output.holistic, ~abnormal, generator)
            + deviation_loss(output.seen[without_pseudo], abnormal[without_pseudo], generator)
            + deviation_loss(output.pseudo[without_seen], abnormal[without_seen], generator)
            + deviation_loss(output.residual, abnormal, generator)
        )

    def anomaly_score(self, output: HeadScores) -> Tensor:
        """seen + pseudo + residual − holistic, (B,)."""
        return output.seen + output.pseudo + output.residual - output.holistic
