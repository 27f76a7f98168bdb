"""The frozen backbone over many images: decoding in worker processes, batches, pooled statistics and maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import get_model
from torchvision.models.feature_extraction import create_feature_extractor

from mpfm_kedro.backbones.views import apply_view
from mpfm_kedro.errors import InputError
from mpfm_kedro.io.images import ImageLoader

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1) * 255
STATISTICS = {
    "mean": lambda maps: maps.mean((2, 3)),
    "max": lambda maps: maps.amax((2, 3)),
    "std": lambda maps: maps.std((2, 3), correction=0),
}


class Backbone(nn.Module):
    """A torchvision classifier up to the layers that are read, frozen and in eval mode.

    ``layers = ["auto"]`` reads the last feature maps at the two coarsest resolutions (layer3 and layer4 of a ResNet).
    """

    def __init__(self, name: str, weights: Mapping[str, Tensor], layers: Sequence[str]) -> None:
        super().__init__()
        network = get_model(name, weights=None).eval()
        network.load_state_dict(weights)
        network.requires_grad_(False)
        available = _map_layers(network)
        self.layers = _coarsest(available) if list(layers) == ["auto"] else tuple(layers)
        unknown = [layer for layer in self.layers if layer not in available]
        if unknown or not self.layers:
            known = ", ".join(layer for layer in available if layer.count(".") < 2)
            raise InputError(f"Backbone '{name}' has no feature map {unknown or layers}; it has {known}")
        self.network = create_feature_extractor(network, {layer: layer for layer in self.layers}).eval()
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (B, 3, S, S) of bytes → one map (B, C, H', W') a layer."""
        mean, std = MEAN.to(images.device), STD.to(images.device)
        normalised = (images.float() - mean) / std
        maps = self.network(normalised.contiguous(memory_format=torch.channels_last))
        return [maps[layer] for layer in self.layers]


def _map_layers(network: nn.Module) -> dict[str, int]:
    """Modules whose output is a map, in order of execution, with the side of that map for a 128-pixel image."""
    sides: dict[str, int] = {}
    hooks = []
    for name, module in network.named_modules():

        def remember(_: nn.Module, __: object, output: object, name: str = name) -> None:
            if name and isinstance(output, Tensor) and output.ndim == 4 and output.shape[-1] > 1:
                sides.pop(name, None)
                sides[name] = output.shape[-1]

        hooks.append(module.register_forward_hook(remember))
    try:
        with torch.inference_mode():
            network(torch.zeros(1, 3, 128, 128))
    finally:
        for hook in hooks:
            hook.remove()
    return sides


def _coarsest(sides: Mapping[str, int]) -> tuple[str, ...]:
    last = {side: name for name, side in sides.items()}
    return tuple(last[side] for side in sorted(last)[:2][::-1])


def pool(maps: Sequence[Tensor], statistics: Sequence[str]) -> Tensor:
    """z: statistics of each map (B, C, H', W') over its positions, side by side (B, d)."""
    return torch.cat([STATISTICS[name](layer) for layer in maps for name in statistics], dim=1).float()


@dataclass(frozen=True)
class ViewImages(Dataset):
    """Decoded, turned and resized images of a table of views (path, crop, view, content_hash)."""

    views: pd.DataFrame
    images: ImageLoader
    image_size: int

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, i: int) -> Tensor:
        row = self.views.iloc[i]
        image = apply_view(self.images.read(row["path"], row["crop"]), row["view"], row["content_hash"])
        image = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def extract(
    backbone: Backbone,
    dataset: ViewImages,
    statistics: Sequence[str],
    device: torch.device,
    batch_size: int,
    workers: int,
    compiled: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pooled statistics (B, d) in fp32 and the last layer's map (B, C, H', W') in fp16, batch by batch."""
    network: nn.Module = backbone.to(device)
    if compiled:
        network = torch.compile(network, options={"freezing": True})  # type: ignore[assignment]
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers, prefetch_factor=4 if workers else None)
    with torch.inference_mode():
        for batch in loader:
            maps = network(batch.to(device))
            yield pool(maps, statistics).cpu(), maps[-1].half().cpu()
