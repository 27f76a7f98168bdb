"""Mutual information between a normal's image in the prototype space and its prototype."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Information(NamedTuple):
    """I(ψ; c) = H(c) − H(c|ψ), in nats, estimated on a batch."""

    marginal_entropy: Tensor
    conditional_entropy: Tensor

    @property
    def mutual(self) -> Tensor:
        """I(ψ(z); c)."""
        return self.marginal_entropy - self.conditional_entropy


def information(posterior: Tensor) -> Information:
    """Entropies of the assignments p(c|ψ) (B, K); H(c) from the batch marginal, which has a gradient."""
    return Information(_entropy(posterior.mean(0)), _entropy(posterior).mean())


def mim_loss(posterior: Tensor, weight: Tensor, printed: bool = False) -> Tensor:
    """L_mim = H(c|ψ) − H(c): its minimum is the maximum of the mutual information.

    The printed form, E[Σ p log p] − Σ π log π, is the mutual information itself with its sign the wrong way:
    minimising it spreads the assignments and starves prototypes.
    """
    estimate = information(posterior)
    if printed:
        return -estimate.conditional_entropy + _entropy(weight)
    return -estimate.mutual


def _entropy(p: Tensor) -> Tensor:
    """−Σ p log p over the last axis."""
    return -(p * p.clamp_min(1e-12).log()).sum(-1)
