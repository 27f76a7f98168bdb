"""DevNet, FLOS, SAOE and MLEP: a small network on one input, each with its loss."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid, pad

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector, Inputs, TopPositions

PRIOR_DRAWS = 5000
DEVIATION = 5.0
FOCUS = 2.0
HIDDEN = 256
EMBEDDED = 64
MARGIN = 1.0


def deviation_loss(scores: Tensor, abnormal: Tensor, generator: torch.Generator) -> Tensor:
    """Mean of |dev| for normals and max(0, 5 − dev) for anomalies; dev = (score − mean) / std of draws of N(0, 1).

    Scores and which of them should deviate are (B,).
    """
    draws = torch.randn(PRIOR_DRAWS, generator=generator)
    deviation = (scores - float(draws.mean())) / float(draws.std())
    return torch.where(abnormal, (DEVIATION - deviation).clamp_min(0), deviation.abs()).mean()


class DevNet(GradientDetector):
    """The scores of known anomalies deviate from what a normal prior expects of normals.

    They are those of the top positions of one 1×1 convolution on F, trained by the deviation loss. The backbone is
    frozen here and tuned in the published method. Pseudo-anomalies are not used, as published.
    """

    name = "DevNet"
    learning_rate = 3e-2

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """One score per image."""
        return TopPositions(inputs[0].shape[-1])

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Deviation loss of (B, 1)."""
        return deviation_loss(output[:, 0], group != NORMAL, generator)


def focal_loss(logits: Tensor, abnormal: Tensor) -> Tensor:
    """Mean of −(1 − p)² log p, p the probability of the true class; logits and abnormal (bool) are (B,)."""
    log_p = logsigmoid(torch.where(abnormal, logits, -logits))
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

    The loss is against the imbalance of normals and known anomalies. The backbone is frozen here and tuned in the
    published comparisons. Pseudo-anomalies are not used.
    """

    name = "FLOS"
    learning_rate = 3e-2

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """One logit per image."""
        return TopPositionsLogit(inputs[0].shape[-1])

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Focal loss of (B, 1)."""
        return focal_loss(output[:, 0], group != NORMAL)


class SAOE(GradientDetector):
    """Cross-entropy of normal, seen and pseudo; the score is log p(not normal) − log p(normal).

    The logits are zero, and the top positions' signed scores of the two kinds of anomalies. Pseudo-anomalies are its
    synthetic anomalies. Exposure to outliers, images of other datasets, is omitted: a run has none. The backbone is
    frozen here and tuned in the published comparisons.
    """

    name = "SAOE"
    differs = "no outlier exposure: a run has no images of other datasets"
    learning_rate = 3e-2
    uses_pseudo = True

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """Logits of seen and pseudo."""
        return TopPositions(inputs[0].shape[-1], 2, absolute=False)

    def loss(self, output: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy of (B, 2) and a logit of zero for normals."""
        return cross_entropy(pad(output, (1, 0)), group)

    def anomaly_score(self, output: Tensor) -> Tensor:
        """Log-odds, (B, 2) → (B,)."""
        return output.logsumexp(1)


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

    The embeddings are (n, E) and (m, E).
    """
    near = (normals - normals.roll(1, 0)).square().sum(1).clamp_min(1e-12).sqrt()
    far = torch.cdist(normals, anomalies)
    return (MARGIN + near[:, None] - far).clamp_min(0).mean()


class MLEP(GradientDetector):
    """Margin loss on embeddings of pooled features plus the logistic loss of the prediction; the score is its logit.

    The published method predicts the next frame of a video; a still has none, so what is predicted is whether an image
    is abnormal. Pseudo-anomalies are not used.
    """

    name = "MLEP"
    differs = "predicts whether an image is abnormal in place of the next frame of a video"
    learning_rate = 1e-3
    reads = ("pooled",)

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """Embedding and prediction."""
        return EmbeddedPrediction(inputs[0].shape[-1])

    def loss(self, output: tuple[Tensor, Tensor], group: Tensor, generator: torch.Generator) -> Tensor:
        """Margin and prediction, weighted alike."""
        (embedding, logit), normal = output, group == NORMAL
        margin = margin_loss(embedding[normal], embedding[~normal])
        return margin + binary_cross_entropy_with_logits(logit, (~normal).float())

    def anomaly_score(self, output: tuple[Tensor, Tensor]) -> Tensor:
        """The logit, (B,)."""
        return output[1]
