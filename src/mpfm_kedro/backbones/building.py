"""The backbone of a name, with maps of the layers that are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.extraction import Backbone
from mpfm_kedro.backbones.timm_backbone import TimmBackbone
from mpfm_kedro.backbones.timm_models import PREFIX
from mpfm_kedro.backbones.vit_backbone import TransformerBackbone

AUTO = ["auto"]


def build_backbone(
    name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
) -> Backbone:
    """The backbone of this name with these weights; ["auto"] leaves the choice of layers to it."""
    if name == dinov2.NAME:
        layers = dinov2.LAYERS if list(layers) == AUTO else layers
        map_layers = dinov2.MAP_LAYERS if list(map_layers) == AUTO else map_layers
        return TransformerBackbone(name, weights, layers, map_layers)
    kind = TimmBackbone if name.startswith(PREFIX) else Backbone
    return kind(name, weights, layers, map_layers)


def accepted_size(backbone: Backbone, image_size: int) -> int:
    """The size nearest to ``image_size`` that a whole number of the backbone's patches fills."""
    patch = getattr(backbone, "patch", 1)
    return max(1, round(image_size / patch)) * patch
