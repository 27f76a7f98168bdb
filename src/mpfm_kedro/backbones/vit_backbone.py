"""DINOv2's vision transformer as a backbone: its patch tokens are maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.extraction import MEAN, STD, Backbone
from mpfm_kedro.backbones.vit import DEPTH, PATCH, WIDTH, VisionTransformer
from mpfm_kedro.errors import InputError


class TransformerBackbone(Backbone):
    """DINOv2 ViT-S/14 with maps of patch tokens, frozen and in eval mode.

    Args:
        name: for messages.
        weights: the tensors of ``VisionTransformer``.
        layers: whose statistics make z: ``blocks.0`` to ``blocks.11`` (the residual stream after a block) or ``norm``
            (after the last block, normalised).
        map_layers: whose patch tokens make F.
    """

    version = 1
    patch = PATCH

    def __init__(
        self, name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
    ) -> None:
        nn.Module.__init__(self)  # not that of a convolutional network
        known = [*(f"blocks.{number}" for number in range(DEPTH)), "norm"]
        self.layers, self.map_layers = tuple(layers), tuple(map_layers)
        if unknown := [layer for layer in (*self.layers, *self.map_layers) if layer not in known]:
            raise InputError(f"Backbone '{name}' has no feature map {unknown}; it has: {', '.join(known)}")
        self.network = VisionTransformer().eval()
        self.network.load_state_dict(weights)
        self.requires_grad_(False)
        for buffer, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(buffer, torch.tensor(values).view(1, 3, 1, 1) * 255, persistent=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → patch tokens (B, C, S / 14, S / 14) of each layer."""
        wanted = list(dict.fromkeys([*self.map_layers, *self.layers]))
        return self.network((images.float() - self.mean) / self.std, wanted)

    def largest_map_bytes(self, image_size: int) -> int:
        """Bytes of the hidden layer of an Mlp for one image, in fp32."""
        return 4 * 4 * WIDTH * (1 + (image_size // PATCH) ** 2)
