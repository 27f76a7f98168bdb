"""The four scoring modules M_g, M_a, M_r and M_n; each has a leading axis of R rounds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, softplus

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.patches import top_number
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.tensors import TensorModule
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, NetworkVelocity, ResidualNetwork

SOFTPLUS_IS_ONE = math.log(math.e - 1)


class Logit(TensorModule):
    """softplus(α) · (s − centre) / spread + β: a score as the logit of a binary loss, in the same order; θ = (α, β)."""

    learned = frozenset({"slope", "offset"})
    center: Tensor  # of the score of normals (R,)
    spread: Tensor  # (R,)
    slope: Tensor  # α (R,)
    offset: Tensor  # β (R,)

    @classmethod
    def start(cls, center: Tensor, spread: Tensor) -> Self:
        """The standardised score as it is, (R,) each."""
        slope = torch.full_like(center, SOFTPLUS_IS_ONE)
        return cls(center=center, spread=spread.clamp_min(1e-6), slope=slope, offset=torch.zeros_like(center))

    def forward(self, score: Tensor) -> Tensor:
        """(R, B, …) → (R, B, …)."""
        shape = (-1, *[1] * (score.dim() - 1))
        center, spread, slope, offset = (
            value.view(shape) for value in (self.center, self.spread, softplus(self.slope), self.offset)
        )
        return slope * ((score - center) / spread) + offset


class ResidualScore(TensorModule):
    """M_r: S_r = Σ_c e^{η_c} r_c² over the residual r to the nearest prototype; η = 0 at the start."""

    learned = frozenset({"log_weight"})
    log_weight: Tensor  # η (R, 1, C)

    def forward(self, squares: Tensor) -> Tensor:
        """Squares r_c² (R, B, …, C) → (R, B, …)."""
        return (squares.flatten(1, -2) * self.log_weight.exp()).sum(2).view(squares.shape[:-1])


class NormalityScore(TensorModule):
    """M_n: S_n = w · z + b, higher for normals."""

    learned = frozenset({"weight", "bias"})
    weight: Tensor  # w (R, d)
    bias: Tensor  # b (R,)

    def forward(self, z: Tensor) -> Tensor:
        """(B, d) → (R, B)."""
        return self.weight @ z.T + self.bias[:, None]


class LocalScore(TensorModule):
    """M_a: S_a = mean over members e of the mean of |w_e · v_x + b_e| over the top share O of e's positions x.

    Members are trained from different first weights, since one alone may end in a poor local minimum, and may average
    different shares O of the positions: a defect may fill a tenth of the image or a hundredth.
    """

    learned = frozenset({"weight", "bias"})
    weight: Tensor  # w (R, E, C), on standardised channels
    bias: Tensor  # b (R, E)

    def __init__(self, shares: Sequence[float], **tensors: Tensor) -> None:
        super().__init__(**tensors)
        self.shares = list(shares)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """S_a, and the mean over members at each position: (B, X, C) → (R, B), (R, B, X)."""
        scores = (torch.einsum("rec,bxc->rebx", self.weight, v) + self.bias[..., None, None]).abs()
        numbers = [top_number(share, v.shape[1]) for share in self.shares]
        largest = scores.topk(max(numbers), dim=3).values
        means = [largest[:, e, :, :number].mean(2) for e, number in enumerate(numbers)]
        return torch.stack(means).mean(0), scores.mean(1)

    def member_scores(self, v: Tensor) -> Tensor:
        """The score of each member, for training, (B, X, C) → (R, E, B).

        At the top positions x with signs σ_x the mean of |w · v_x + b| is w · (Σ σ_x v_x / k) + b (Σ σ_x / k), and its
        gradient is that of this linear function: which positions are the top ones does not matter to first order. So
        only the few vectors at these positions take part in the gradient.
        """
        rounds, members, channels = self.weight.shape
        vectors = v.flatten(0, 1)
        with torch.no_grad():
            scores = self.weight.flatten(0, 1) @ vectors.T + self.bias.flatten()[:, None]
            scores = scores.view(rounds, members, *v.shape[:2])
            first = v.shape[1] * torch.arange(len(v), device=v.device)[:, None]
            mean, sign_mean = v.new_empty(rounds, members, len(v), channels), v.new_empty(rounds, members, len(v))
            for e, share in enumerate(self.shares):
                number = top_number(share, v.shape[1])
                position = scores[:, e].abs().topk(number, sorted=False).indices
                sign = scores[:, e].gather(2, position).sign() / number
                bags = (position + first).flatten(0, 1), vectors
                summed = embedding_bag(*bags, mode="sum", per_sample_weights=sign.flatten(0, 1))
                mean[:, e] = summed.view(rounds, len(v), channels)
                sign_mean[:, e] = sign.sum(2)
        return (self.weight[:, :, None] * mean).sum(3) + self.bias[..., None] * sign_mean


class Modules(nn.Module):
    """What is trained together: the flow and the four scoring modules; all parameters have R rounds in front.

    Args:
        parameters: of the training stage: sizes by name, and "printed" or "repaired" by name of a repair.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self.printed = frozenset(name for name, form in parameters.items() if form == "printed")
        velocity = NetworkVelocity if "transport_start" in self.printed else CoupledVelocity
        self.flow = Flow(velocity(ResidualNetwork()), PrototypeMixture(), parameters["transport_steps"])
        self.m_g = Logit()  # of −log p in ``Flow.score``
        self.m_r = ResidualScore()
        self.r_logit = Logit()  # of S_r
        self.m_a = LocalScore([o for o in parameters["head_top_shares"] for _ in range(parameters["head_members"])])
        self.m_n = NormalityScore()

    @classmethod
    def restore(cls, fit: Artefact, number: int) -> Self:
        """One round of the stored state, R = 1, which is not trained further."""
        modules = cls(fit.details["parameters"])
        modules.load_state_dict({name: value[number:][:1].clone() for name, value in fit.tensors.items()})
        return modules.requires_grad_(False)

    def score_g(self, squared: Tensor) -> Tensor:
        """The logit of S_g from squared distances of ψ to the prototypes (R, B, K); raw −log p in the printed form."""
        nll = self.flow.prototypes.nll(squared)
        return nll if "likelihood" in self.printed else self.m_g(nll / self.flow.prototypes.mean.shape[2])

    def score_r(self, psi: Tensor, squares: Tensor) -> Tensor:
        """The logit of S_r from squared residuals of patches (R, B, C); as printed from those of ψ, per dimension."""
        if "residual" in self.printed:
            squares = self.flow.prototypes.residual(psi).square() / psi.shape[2]
        return self.r_logit(self.m_r(squares))
