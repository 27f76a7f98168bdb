"""The four scoring modules M_g, M_a, M_r and M_n; each has a leading axis of R rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Forms:
    """Weights of the objective, and which of its terms have the printed form (docs/method.md, ``RepairParameters``)."""

    mim_weight: float
    mim_sharpness: float
    push_margin: float
    mutual_information: bool = False
    normality_target: bool = False
    velocity_target: bool = False
    push: bool = False
    likelihood: bool = False
    coupling: bool = False
    residual: bool = False


class Logit(TensorModule):
    """softplus(α) · (s − centre) / spread + β: a score as the logit of a binary loss, in the same order; θ = (α, β).

    Args:
        center: of the score of normals (R,).
        spread: (R,).
        learned: α and β (R,), by default those that leave the standardised score as it is.
    """

    learned = frozenset({"slope", "offset"})
    center: Tensor
    spread: Tensor
    slope: Tensor
    offset: Tensor

    def __init__(self, center: Tensor, spread: Tensor, **learned: Tensor) -> None:
        start = {"slope": torch.full_like(center, SOFTPLUS_IS_ONE), "offset": torch.zeros_like(center)}
        super().__init__(center=center, spread=spread.clamp_min(1e-6), **(start | learned))

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


class TopPositions(TensorModule):
    """M_a: S_a = mean over members e of the mean of |w_e · v_x + b_e| over the top share O of e's positions x.

    Members are trained from different first weights, since one alone may end in a poor local minimum, and may average
    different shares of the positions: a defect may fill a tenth of the image or a hundredth.

    Args:
        shares: O of each member; E in all.
        tensors: w (R, E, C), on standardised channels, and b (R, E).
    """

    learned = frozenset({"weight", "bias"})
    weight: Tensor
    bias: Tensor

    def __init__(self, shares: Sequence[float], **tensors: Tensor) -> None:
        super().__init__(**tensors)
        self.shares = list(shares)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """S_a, and the mean over members at each position: (B, X, C) → (R, B), (R, B, X)."""
        scores = (torch.einsum("rec,bxc->rebx", self.weight, v) + self.bias[..., None, None]).abs()
        numbers = self._numbers(v)
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
            for e, number in enumerate(self._numbers(v)):
                position = scores[:, e].abs().topk(number, sorted=False).indices
                sign = scores[:, e].gather(2, position).sign() / number
                bags = (position + first).flatten(0, 1), vectors
                summed = embedding_bag(*bags, mode="sum", per_sample_weights=sign.flatten(0, 1))
                mean[:, e] = summed.view(rounds, len(v), channels)
                sign_mean[:, e] = sign.sum(2)
        return (self.weight[:, :, None] * mean).sum(3) + self.bias[..., None] * sign_mean

    def _numbers(self, v: Tensor) -> list[int]:
        """How many positions each member averages."""
        return [top_number(share, v.shape[1]) for share in self.shares]


class Modules(nn.Module):
    """What is trained together: the flow and the four scoring modules; all parameters have R rounds in front.

    Args:
        flow: ψ and its prototypes.
        m_g: the logit of S_g.
        m_r: weights of the residuals.
        r_logit: the logit of S_r.
        m_a: learned scores of patches.
        m_n: learned normality.
        forms: of the objective, which decide what S_g and S_r read.
    """

    def __init__(
        self,
        flow: Flow,
        m_g: Logit,
        m_r: ResidualScore,
        r_logit: Logit,
        m_a: TopPositions,
        m_n: NormalityScore,
        forms: Forms,
    ) -> None:
        super().__init__()
        self.flow = flow
        self.m_g = m_g
        self.m_r = m_r
        self.r_logit = r_logit
        self.m_a = m_a
        self.m_n = m_n
        self.forms = forms

    def details(self) -> dict[str, Any]:
        """What is stored beside the tensors."""
        return {"shares": self.m_a.shares, "steps": self.flow.steps, "forms": vars(self.forms)}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], details: Mapping[str, Any]) -> Self:
        """Modules that are not trained further, from ``state_dict`` and ``details``."""
        part = Artefact(dict(tensors)).part
        network = ResidualNetwork(**part("flow.velocity.network"))
        prototypes = PrototypeMixture(**part("flow.prototypes"))
        velocity: CoupledVelocity | NetworkVelocity = NetworkVelocity(network, prototypes.logit.shape[1])
        if "flow.velocity.center" in tensors:
            velocity = CoupledVelocity(tensors["flow.velocity.center"], tensors["flow.velocity.gain"], network)
        return cls(
            Flow(velocity, prototypes, details["steps"]),
            Logit(**part("m_g")),
            ResidualScore(**part("m_r")),
            Logit(**part("r_logit")),
            TopPositions(details["shares"], **part("m_a")),
            NormalityScore(**part("m_n")),
            Forms(**details["forms"]),
        ).requires_grad_(False)

    def of_round(self, number: int) -> Self:
        """The modules of one round alone, R = 1."""
        one = {name: value[number:][:1].clone() for name, value in self.state_dict().items()}
        return self.restore(one, self.details())

    def score_g(self, squared: Tensor) -> Tensor:
        """The logit of S_g from squared distances of ψ to the prototypes (R, B, K); raw −log p in the printed form."""
        nll = self.flow.prototypes.nll(squared)
        return nll if self.forms.likelihood else self.m_g(nll / self.flow.prototypes.mean.shape[2])

    def score_r(self, psi: Tensor, squares: Tensor) -> Tensor:
        """The logit of S_r from squared residuals of patches (R, B, C); as printed from those of ψ, per dimension."""
        if self.forms.residual:
            squares = self.flow.prototypes.residual(psi).square() / psi.shape[2]
        return self.r_logit(self.m_r(squares))
