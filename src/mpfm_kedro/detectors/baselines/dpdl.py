"""DPDL: normals are carried to learnable Gaussian prototypes by a Schrödinger bridge, anomalies are kept away.

x is the image's embedding on the hypersphere, P_GM = Σ_k π_k N(μ_k, s² I) the prototypes. The bridge with unit noise
from the normals' x to P_GM has the potential v(y) = Σ_k α_k N(y; r_k, S_k), S_k diagonal, and
``c(x) = Σ_k α_k exp((xᵀ S_k x + 2 r_kᵀ x) / 2)``; it is learned by minimising ``E log c(x) − E log v(y)``, y ~ P_GM.
"""

import math
from typing import NamedTuple, cast

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, softplus

from mpfm_kedro.detectors.baselines.gradient_training import NORMAL, GradientDetector, Inputs, TopPositions
from mpfm_kedro.detectors.mpfm.modules import Logit
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture

DIMENSION = 128
PROTOTYPES = 16
FIRST_VARIANCE = 0.5
CONCENTRATION = 4.0
DISPERSION_WEIGHT = 0.1


class Bridge(nn.Module):
    """The bridge between embeddings x and prototypes; first each prototype's mean μ (K, d) stays where it is."""

    def __init__(self, mean: Tensor, share: Tensor) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.full_like(mean, math.log(FIRST_VARIANCE)))
        self.center = nn.Parameter((1 - FIRST_VARIANCE) * mean)
        exponent = (FIRST_VARIANCE / 2 + (1 - FIRST_VARIANCE)) * mean.square().sum(1)
        self.log_weight = nn.Parameter(share.log() - exponent)

    def log_joint(self, x: Tensor) -> Tensor:
        """Log α_k + (xᵀ S_k x + 2 r_kᵀ x) / 2: (B, d) → (B, K); its logsumexp is log c(x)."""
        return self.log_weight + x.square() @ self.log_variance.exp().T / 2 + x @ self.center.T

    def log_potential(self, y: Tensor) -> Tensor:
        """Log v(y): (B, d) → (B,)."""
        energy = ((y[:, None] - self.center).square() * (-self.log_variance).exp()).sum(2)
        volume = self.log_variance.sum(1) + y.shape[1] * math.log(2 * math.pi)
        return (self.log_weight - (energy + volume) / 2).logsumexp(1)

    def forward(self, x: Tensor) -> Tensor:
        """E[y | x] = Σ_k p(k|x) (r_k + S_k x): (B, d) → (B, d)."""
        weight = self.log_joint(x).softmax(1)
        return weight @ self.center + (weight @ self.log_variance.exp()) * x


class Output(NamedTuple):
    """What the network makes of B images."""

    embedding: Tensor  # x (B, d)
    nll: Tensor  # at the end of the bridge (B,)
    scores: Tensor  # g, a, r and −n (B, 4)


class PrototypeNetwork(nn.Module):
    """A linear map onto the hypersphere of radius √d, bridge, prototypes and four heads.

    g is the NLL at the end of the bridge, a the top positions of a 1×1 convolution on F, r a linear score of
    (ψ − μ_{k*}) / s for the nearest prototype, n a linear score of normality on the pooled statistics. Prototypes
    start as clusters of the embedded normals, by their pooled statistics (n, columns).
    """

    @torch.no_grad()
    def __init__(self, pooled: Tensor, channels: int) -> None:
        super().__init__()
        self.projection = nn.Linear(pooled.shape[1], DIMENSION)
        x = on_sphere(self.projection(pooled))
        number = min(PROTOTYPES, len(torch.unique(x, dim=0)))
        clusters = KMeans(number, n_init=1, random_state=int(torch.randint(2**31, ()))).fit(x.numpy())
        mean = torch.from_numpy(clusters.cluster_centers_).float()
        share = torch.bincount(torch.from_numpy(clusters.labels_).long(), minlength=number).clamp_min(1) / len(x)
        self.bridge = Bridge(mean, share)
        end = self.bridge(x)
        spread = float((end[:, None] - mean).square().mean(2).amin(1).mean().sqrt())
        scale = torch.tensor([max(spread, 1e-3)])
        self.prototypes = PrototypeMixture(mean=mean[None], logit=share.log()[None], scale=scale)
        nll, _ = self.compare(end)
        self.global_score = Logit.start(nll.mean(1), nll.std(1, correction=0))
        self.local_score = TopPositions(channels, absolute=False)
        self.residual_score, self.normality = zero_linear(DIMENSION), zero_linear(pooled.shape[1])

    def forward(self, pooled: Tensor, maps: Tensor) -> Output:
        """(B, columns) and (B, H', W', C) → embeddings and scores."""
        x = on_sphere(self.projection(pooled))
        nll, offset = self.compare(self.bridge(x))
        nearest = offset.square().sum(2).argmin(1)
        residual = offset[torch.arange(len(offset), device=offset.device), nearest]
        columns = self.local_score(maps), self.residual_score(residual), -self.normality(pooled)
        return Output(x, nll[0], torch.cat([self.global_score(nll).T, *columns], dim=1))

    def compare(self, end: Tensor) -> tuple[Tensor, Tensor]:
        """−log P_GM per dimension (1, B), and (y − μ_k) / s (B, K, d), of points y at the end of the bridge (B, d)."""
        offset = (end[:, None] - self.prototypes.mean[0]) / self.prototypes.scale
        return self.prototypes.nll(offset.square().sum(2)[None]) / DIMENSION, offset

    def bridge_loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """E log c(x) − E log v(y), per dimension."""
        _, (ends,) = self.prototypes.sample(len(x), generator)
        return (self.bridge.log_joint(x).logsumexp(1).mean() - self.bridge.log_potential(ends).mean()) / x.shape[1]


class DPDL(GradientDetector):
    """Bridge, attraction of normals, margin for anomalies, dispersion, and a binary loss of each score; their sum.

    There is no published code. Built from the description: the bridge is learned with embeddings and prototypes
    fixed; these learn from the likelihood of normals at its end, which anomalies and pseudo-anomalies must stay a
    margin below. The backbone is frozen here and tuned in the published method.
    """

    name = "DPDL"
    differs = "no published code: sizes, margin and weights of the losses are ours"
    reads = ("pooled", "maps")
    uses_pseudo = True
    learning_rate = 3e-2

    def build(self, inputs: Inputs, n_normals: int) -> nn.Module:
        """Prototypes start as clusters of the normals."""
        pooled, maps = inputs
        return PrototypeNetwork(pooled[torch.arange(n_normals)].cpu().float(), maps.shape[-1])

    def loss(self, output: Output, group: Tensor, generator: torch.Generator) -> Tensor:
        """The sum of all terms."""
        normal = group == NORMAL
        network = cast(PrototypeNetwork, self.network)
        nll = output.nll[normal].mean()
        margin = softplus(1 - (output.nll[~normal] - nll) / network.global_score.spread).mean()
        label = (~normal).float()[:, None].expand(-1, output.scores.shape[1])
        binary = binary_cross_entropy_with_logits(output.scores, label) * output.scores.shape[1]
        dispersion = DISPERSION_WEIGHT * dispersion_loss(output.embedding[normal])
        return network.bridge_loss(output.embedding[normal].detach(), generator) + nll + margin + dispersion + binary

    def anomaly_score(self, output: Output) -> Tensor:
        """g + a + r − n, (B,)."""
        return output.scores.sum(1)


def zero_linear(size: int) -> nn.Linear:
    """A linear score (B, size) → (B, 1) that starts at zero."""
    layer = nn.Linear(size, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def on_sphere(projected: Tensor) -> Tensor:
    """x of length √d: (B, d) → (B, d)."""
    return math.sqrt(DIMENSION) * normalize(projected, dim=1)


def dispersion_loss(x: Tensor) -> Tensor:
    """Log of the mean of exp(κ cos(x_i, x_j)) over pairs i ≠ j: smallest where directions are spread evenly, (B, d)."""
    direction = normalize(x, dim=1)
    cosine = CONCENTRATION * direction @ direction.T
    pairs = cosine[~torch.eye(len(cosine), dtype=torch.bool, device=cosine.device)]
    return pairs.logsumexp(0) - math.log(len(pairs))
