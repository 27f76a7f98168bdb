"""Modules that are made of named tensors, so that what ``state_dict`` gives is what restores them."""

from typing import Any, ClassVar

from torch import Tensor, nn


class TensorModule(nn.Module):
    """A module whose state is given by name, or loaded from a state dict, which then decides its shapes.

    A subclass annotates its tensors with their shapes and names those that are learned: these are parameters, the
    others buffers. Whatever is trained has a leading axis of R rounds of cross-fitting; a model in use has R = 1.
    """

    learned: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, value in tensors.items():
            setattr(self, name, nn.Parameter(value.clone()) if name in self.learned else nn.Buffer(value))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name in type(self).__annotations__:
            if not hasattr(self, name) and prefix + name in state_dict:
                value = state_dict[prefix + name]
                setattr(self, name, nn.Parameter(value) if name in self.learned else nn.Buffer(value))
        super()._load_from_state_dict(state_dict, prefix, *args)


def squared_distances(x: Tensor, points: Tensor) -> Tensor:
    """‖x − points_k‖²: (…, B, d) and (…, K, d) → (…, B, K)."""
    squares = x.square().sum(-1, keepdim=True) - 2 * x @ points.mT + points.square().sum(-1).unsqueeze(-2)
    return squares.clamp_min(0)
