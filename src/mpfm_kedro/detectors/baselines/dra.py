"""DRA: disentangled heads for seen, pseudo, residual and holistic abnormality."""

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.baselines.classifiers import deviation_loss
from mpfm_kedro.detectors.baselines.gradient_training import (
    NORMAL,
    PSEUDO,
    SEEN,
    GradientDetector,
    Inputs,
    TopPositions,
)

HIDDEN = 256
REFERENCES = 5
RESIDUAL_CHANNELS = 16


class FourHeads(nn.Module):
    """Scores of the holistic (high for normals), the seen, the pseudo and the residual head.

    Holistic: d–256–1 on pooled statistics; seen and pseudo: top positions of F; residual: top positions of h(r − x), r
    the mean map of the reference normals. h is a 1×1 convolution to 16 channels and a 3×3 convolution of these, batch
    normalisation and rectifier: the published 3×3 convolution of all channels, with less rank.
    """

    def __init__(self, columns: int, reference: Tensor) -> None:
        super().__init__()
        self.reference = nn.Buffer(reference)
        self.holistic = nn.Sequential(nn.Linear(columns, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.seen_and_pseudo = TopPositions(reference.shape[-1], 2)
        self.reduce = nn.Linear(reference.shape[-1], RESIDUAL_CHANNELS, bias=False)
        mix = nn.Conv2d(RESIDUAL_CHANNELS, RESIDUAL_CHANNELS, 3, padding=1, bias=False)
        self.mix = nn.Sequential(mix, nn.BatchNorm2d(RESIDUAL_CHANNELS), nn.ReLU())
        self.residual = TopPositions(RESIDUAL_CHANNELS)

    def forward(self, pooled: Tensor, maps: Tensor) -> Tensor:
        """(B, d) and (B, H', W', C) → (B, 4)."""
        residual = self.reduce(self.reference) - self.reduce(maps)
        mixed = self.mix(residual.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return torch.cat([self.holistic(pooled), self.seen_and_pseudo(maps), self.residual(mixed)], dim=1)


class DRA(GradientDetector):
    """Deviation loss of each head; the score is seen + pseudo + residual − holistic.

    The holistic head learns normality from all rows, the seen head from normals and known anomalies, the pseudo head
    from normals and pseudo-anomalies, the residual head from all. The references are five training normals drawn once
    by the seed, without the published pseudo-anomalies among them, so that a test score is not random. The backbone is
    frozen here and tuned in the published method, which also adds a second scale.
    """

    name = "DRA"
    differs = "residual head of 16 channels, one scale, references without pseudo-anomalies"
    learning_rate = 1e-2
    reads = ("pooled", "maps")
    uses_pseudo = True

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """The references are drawn at random."""
        pooled, maps = inputs
        references = maps[torch.randperm(n_normals)[:REFERENCES]]
        return FourHeads(pooled.shape[-1], references.float().mean(0))

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """The sum over the heads."""
        abnormal, everything = group != NORMAL, torch.ones_like(group, dtype=torch.bool)
        targets = (~abnormal, abnormal, abnormal, abnormal)
        learned = (everything, group != PSEUDO, group != SEEN, everything)
        heads = zip(output.unbind(1), targets, learned, strict=True)
        losses = [deviation_loss(scores[rows], target[rows], generator) for scores, target, rows in heads]
        return torch.stack(losses).sum()

    def anomaly_score(self, output: Tensor) -> Tensor:
        """seen + pseudo + residual − holistic, (B,)."""
        return output[:, 1:].sum(1) - output[:, 0]
