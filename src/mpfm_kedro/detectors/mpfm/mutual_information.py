"""Mutual information between a normal's image in the prototype space and its prototype (MIMR)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Information(NamedTuple):
    """I(ψ; c) = H(c) − H(c|ψ), in nats, estimated on a batch, (R,) each."""

    marginal_entropy: Tensor
    conditional_entropy: Tensor

    @property
    def mutual(self) -> Tensor:
        """I(ψ; c)."""
        return self.marginal_entropy - self.conditional_entropy


def information(posterior: Tensor, weight: Tensor) -> Information:
    """Entropies of the assignments p(c|ψ) (R, B, K), each counted by its weight (R, B), which sums to 1.

    H(c) is that of the batch marginal, which has a gradient.
    """
    marginal = (weight[..., None] * posterior).sum(1)
    return Information(entropy(marginal), (weight * entropy(posterior)).sum(1))


def mim_loss(posterior: Tensor, weight: Tensor, share: Tensor, as_printed: bool = False) -> Tensor:
    """L_mim = H(c|ψ) − H(c): its minimum is the maximum of the mutual information, (R,).

    The printed form, E[Σ p log p] − Σ π log π, is the mutual information itself with its sign the wrong way:
    minimising it spreads the assignments and starves prototypes.

    Args:
        posterior: p(c|ψ) of normals (R, B, K).
        weight: of each of them (R, B).
        share: π (R, K).
        as_printed: the printed form.
    """
    estimate = information(posterior, weight)
    if as_printed:
        return -estimate.conditional_entropy + entropy(share)
    return -estimate.mutual


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p over the last axis."""
    return -(p * p.clamp_min(1e-12).log()).sum(-1)
