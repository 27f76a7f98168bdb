"""A model of timm as a backbone: its stages or blocks are maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.extraction import Backbone
from mpfm_kedro.backbones.timm_models import create_network
from mpfm_kedro.errors import InputError


class TimmBackbone(Backbone):
    """A model of timm up to the layers whose maps are used, frozen and in eval mode.

    Args:
        name: ``timm/<name>``.
        weights: its tensors.
        layers: whose statistics make z, by the names of ``feature_info``; ["auto"] is the last two stages or, in a
            transformer with one resolution, the block after three quarters of the depth and the last one.
        map_layers: whose maps make F; ["auto"] is the two stages before the last or, in a transformer, the block after
            three quarters of the depth.
    """

    version = 1

    def __init__(
        self, name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
    ) -> None:
        nn.Module.__init__(self)  # not that of torchvision's networks
        self.network = create_network(name)
        self.network.load_state_dict(weights)
        self.requires_grad_(False)
        stages = list(self.network.feature_info)
        names, reductions = [one["module"] for one in stages], [int(one["reduction"]) for one in stages]
        one_resolution = len(set(reductions)) == 1
        self.patch = reductions[0] if one_resolution else 1
        late = names[3 * len(names) // 4]
        auto, map_auto = ([late, names[-1]], [late]) if one_resolution else (names[-2:], names[-3:-1])
        self.layers = tuple(auto if list(layers) == ["auto"] else layers)
        self.map_layers = tuple(map_auto if list(map_layers) == ["auto"] else map_layers)
        self._wanted = [layer for layer in names if layer in {*self.layers, *self.map_layers}]
        if unknown := sorted({*self.layers, *self.map_layers} - set(names)):
            raise InputError(f"Backbone '{name}' has no feature map {unknown}; it has: {', '.join(names)}")
        self._indices = [names.index(layer) for layer in self._wanted]
        self._bytes_per_pixel = 16 * max(one["num_chs"] / one["reduction"] ** 2 for one in stages)
        for buffer in ("mean", "std"):
            values = torch.tensor(self.network.pretrained_cfg[buffer]).view(1, 3, 1, 1) * 255
            self.register_buffer(buffer, values, persistent=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → a map (B, C, H', W') of each layer."""
        normalised = (images.float() - self.mean) / self.std
        try:
            maps = self.network.forward_intermediates(normalised, indices=self._indices, intermediates_only=True)
        except AssertionError as error:  # a transformer for one image size
            raise InputError(f"Backbone cannot be used at image_size {images.shape[-1]}: {error}") from error
        return dict(zip(self._wanted, maps, strict=True))
