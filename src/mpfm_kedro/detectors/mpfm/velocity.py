"""The velocity mixture q_θ(u | x_t) = Σ_k π_k N(u; μ_{u,k}(x_t, t), s_u² I) with s_u = 1.

It starts as the closed-form transport of each group to its prototype, and a network learns what is missing. In the
printed form there is no such start: the network makes all weights and means.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.tensors import TensorModule, squared_distances

TIME_FREQUENCIES = 8


class ResidualNetwork(TensorModule):
    """d → hidden → outputs with the time added to the hidden layer."""

    learned = frozenset({"read", "time", "bias", "write", "offset"})
    read: Tensor  # (R, d, hidden)
    time: Tensor  # (R, 2 · TIME_FREQUENCIES, hidden)
    bias: Tensor  # (R, 1, hidden)
    write: Tensor  # (R, hidden, outputs)
    offset: Tensor  # (R, 1, outputs)

    @classmethod
    def start(
        cls, rounds: int, d: int, hidden: int, outputs: int, generator: torch.Generator, zero: bool = True
    ) -> Self:
        """First weights, the same in every round.

        It returns zero, unless it makes all components alone: these would then never differ.
        """

        def draw(inputs: int, width: int) -> Tensor:
            return torch.randn(inputs, width, generator=generator) / inputs**0.5

        weights = {
            "read": draw(d, hidden),
            "time": draw(2 * TIME_FREQUENCIES, hidden),
            "bias": torch.zeros(1, hidden),
            "write": torch.zeros(hidden, outputs) if zero else draw(hidden, outputs),
            "offset": torch.zeros(1, outputs),
        }
        return cls(**{name: value.repeat(rounds, 1, 1) for name, value in weights.items()})

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """(R, B, d) and t (R, B, 1) → (R, B, outputs)."""
        angle = math.pi * t * 2.0 ** torch.arange(TIME_FREQUENCIES, device=t.device)
        time = torch.cat([angle.sin(), angle.cos()], dim=-1)
        return nn.functional.silu(x @ self.read + time @ self.time + self.bias) @ self.write + self.offset


class CoupledVelocity(TensorModule):
    """Means v_k(x_t, t) + residual(x_t, t), weights p_k of the groups; without a network the closed-form start.

    Group k is carried from m_k + (x − m_k) to m_k + a_k (x − m_k). On the straight path
    v_k(x_t, t) = (a_k − 1) / ((1 − t) + t a_k) · (x_t − m_k), exact in one Euler step of any length.
    """

    center: Tensor  # m (R, K, d), whitened group means
    gain: Tensor  # a (R, K)

    def __init__(self, network: ResidualNetwork | None = None, **tensors: Tensor) -> None:
        super().__init__(**tensors)
        self.network = network

    def residual(self, x_t: Tensor, t: Tensor) -> Tensor:
        """What the network adds to all component means, (R, B, d)."""
        return torch.zeros_like(x_t) if self.network is None else self.network(x_t, t)

    def field(self, x_t: Tensor, t: Tensor, p: Tensor) -> Tensor:
        """The mean velocity Σ_k p_k v_k + residual at x_t (R, B, d) and t (R, B, 1), with group weights p (R, B, K)."""
        rate = p * self._rate(t)
        return rate.sum(2, keepdim=True) * x_t - rate @ self.center + self.residual(x_t, t)

    def log_prob(self, u: Tensor, x_t: Tensor, t: Tensor, p: Tensor) -> Tensor:
        """log q(u | x_t), (R, B), by products with the K centres: no (B, K, d) is made.

        ‖w − r_k (x_t − m_k)‖² = ‖w‖² − 2 r_k w·(x_t − m_k) + r_k² ‖x_t − m_k‖² with w = u − residual.
        """
        rate, w = self._rate(t), u - self.residual(x_t, t)
        along = (w * x_t).sum(2, keepdim=True) - w @ self.center.mT
        squared = w.square().sum(2, keepdim=True) - 2 * rate * along
        squared = squared + rate.square() * squared_distances(x_t, self.center)
        return log_mixture(p.clamp_min(1e-12).log(), squared, u.shape[2])

    def _rate(self, t: Tensor) -> Tensor:
        """(a_k − 1) / ((1 − t) + t a_k): (R, B, 1) → (R, B, K)."""
        gain = self.gain[:, None]
        return (gain - 1) / ((1 - t) + t * gain)


class NetworkVelocity(nn.Module):
    """The printed form: a network with K (d + 1) outputs makes all weights and means; group weights are not used."""

    def __init__(self, network: ResidualNetwork) -> None:
        super().__init__()
        self.network = network

    def components(self, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """log π (R, B, K) and μ_u (R, B, K, d) at x_t (R, B, d) and t (R, B, 1)."""
        outputs, d = self.network(x_t, t), x_t.shape[2]
        k = outputs.shape[2] // (d + 1)
        logit, mean = outputs.split([k, k * d], 2)
        return logit.log_softmax(2), mean.unflatten(2, (k, d))

    def field(self, x_t: Tensor, t: Tensor, p: Tensor) -> Tensor:
        """The mean velocity Σ_k π_k μ_{u,k}, (R, B, d)."""
        log_weight, mean = self.components(x_t, t)
        return torch.einsum("rbk,rbkd->rbd", log_weight.exp(), mean)

    def log_prob(self, u: Tensor, x_t: Tensor, t: Tensor, p: Tensor) -> Tensor:
        """log q(u | x_t), (R, B)."""
        log_weight, mean = self.components(x_t, t)
        return log_mixture(log_weight, (u[:, :, None] - mean).square().sum(3), u.shape[2])


def log_mixture(log_weight: Tensor, squared: Tensor, d: int) -> Tensor:
    """log Σ_k w_k N with unit variance in d dimensions from squared distances, (R, B, K) each → (R, B)."""
    return (log_weight - 0.5 * squared).logsumexp(2) - 0.5 * d * math.log(2 * math.pi)
