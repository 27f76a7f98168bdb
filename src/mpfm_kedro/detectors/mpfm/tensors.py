"""Modules that are made of named tensors, so that what ``state_dict`` gives is what restores them."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class TensorModule(nn.Module):
    """A module whose state is given by name: parameters where they are learned, buffers otherwise.

    A subclass annotates its tensors with their shapes, and names the learned ones.
    """

    learned: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, value in tensors.items():
            setattr(self, name, nn.Parameter(value.clone()) if name in self.learned else nn.Buffer(value))


def squared_distances(x: Tensor, points: Tensor) -> Tensor:
    """‖x − points_k‖²: (…, B, d) and (…, K, d) → (…, B, K)."""
    squares = x.square().sum(-1, keepdim=True) - 2 * x @ points.mT + points.square().sum(-1).unsqueeze(-2)
    return squares.clamp_min(0)
