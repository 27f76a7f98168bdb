"""The backbone of a name, with maps of the layers that are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.extraction import Backbone
from mpfm_kedro.backbones.timm_backbone import PREFIX, TimmBackbone


def build_backbone(
    name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
) -> Backbone:
    """The backbone of this name with these weights; ["auto"] leaves the choice of layers to it."""
    kind = dinov2.TransformerBackbone if name == dinov2.NAME else TimmBackbone if name.startswith(PREFIX) else Backbone
    return kind(name, weights, layers, map_layers)


def accepted_size(backbone: Backbone, image_size: int) -> int:
    """The size nearest to ``image_size`` that a whole number of the backbone's patches fills."""
    patch = getattr(backbone, "patch", 1)
    return max(1, round(image_size / patch)) * patch
