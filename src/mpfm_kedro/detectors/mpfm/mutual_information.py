"""Mutual information between a normal's image in the prototype space and its prototype (MIMR)."""

from __future__ import annotations

from torch import Tensor


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p over the last axis."""
    return -(p * p.clamp_min(1e-12).log()).sum(-1)


def conditional_entropy(posterior: Tensor, weight: Tensor) -> Tensor:
    """H(c|ψ) of assignments p(c|ψ) (R, B, K), each counted by its weight (R, B), which sums to 1: (R,)."""
    return (weight * entropy(posterior)).sum(1)


def information(posterior: Tensor, weight: Tensor) -> Tensor:
    """I(ψ; c) = H(c) − H(c|ψ) in nats, (R,); H(c) is that of the batch marginal, which has a gradient."""
    return entropy((weight[..., None] * posterior).sum(1)) - conditional_entropy(posterior, weight)


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
    if as_printed:
        return entropy(share) - conditional_entropy(posterior, weight)
    return -information(posterior, weight)
