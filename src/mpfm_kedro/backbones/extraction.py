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

    Args:
        name: of the classifier.
        weights: its tensors.
        layers: whose statistics make z; ["auto"] is the last maps at the two coarsest resolutions (layer3 and layer4
            of a ResNet).
        map_layers: whose maps, at the resolution of the last of them, make F; ["auto"] is one resolution finer (layer2
            and layer3 of a ResNet), where small defects show.
    """

    def __init__(
        self, name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
    ) -> None:
        super().__init__()
        network = get_model(name, weights=None).eval()
        network.load_state_dict(weights)
        network.requires_grad_(False)
        try:
            sides = _map_layers(network)
        except (AssertionError, RuntimeError) as error:  # a transformer for one image size, for example
            raise InputError(f"Backbone '{name}' cannot be used, it has no maps of any size: {error}") from error
        by_resolution = [name for _, name in sorted((side, name) for name, side in _last_of_each(sides).items())]
        self.layers = tuple(by_resolution[1::-1]) if list(layers) == ["auto"] else tuple(layers)
        self.map_layers = tuple(by_resolution[2:0:-1]) if list(map_layers) == ["auto"] else tuple(map_layers)
        wanted = list(dict.fromkeys([*self.map_layers, *self.layers]))
        unknown = [layer for layer in wanted if layer not in sides]
        if unknown or not self.layers or not self.map_layers:
            known = ", ".join(layer for layer in sides if layer.count(".") < 2)
            raise InputError(f"Backbone '{name}' has no feature map {unknown or list(layers)}; it has: {known}")
        self.network = create_feature_extractor(network, {layer: layer for layer in wanted}).eval()
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → a map (B, C, H', W') of each layer."""
        mean, std = MEAN.to(images.device), STD.to(images.device)
        normalised = (images.float() - mean) / std
        return self.network(normalised.contiguous(memory_format=torch.channels_last))

    def features(self, images: Tensor, statistics: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Images (B, 3, S, S) → pooled statistics (B, d) in fp32 and F (B, C, H', W') in fp16."""
        return self.gather(self(images), statistics)

    def gather(self, maps: Mapping[str, Tensor], statistics: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Z and F from the maps of the layers."""
        pooled = [STATISTICS[name](maps[layer]) for layer in self.layers for name in statistics]
        height, width = maps[self.map_layers[-1]].shape[2:]
        finest = [nn.functional.adaptive_avg_pool2d(maps[layer], (height, width)) for layer in self.map_layers]
        return torch.cat(pooled, dim=1).float(), torch.cat(finest, dim=1).half()


def _map_layers(network: nn.Module) -> dict[str, int]:
    """Modules whose output is a map, in order of execution, with the side of that map for a 128-pixel image."""
    sides: dict[str, int] = {}
    hooks = []
    for name, module in network.named_modules():

        def remember(_: nn.Module, __: object, output: object, name: str = name) -> None:
            if name and isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == output.shape[3] > 1:
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


def _last_of_each(sides: Mapping[str, int]) -> dict[str, int]:
    """The last whole block at each resolution: of the layers there, the last one at the least depth."""
    last: dict[int, str] = {}
    for name, side in sides.items():
        if side not in last or name.count(".") <= last[side].count("."):
            last[side] = name
    return {name: side for side, name in last.items()}


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
    """Pooled statistics (B, d) and maps F (B, C, H', W') of the backbone, batch by batch."""
    network: nn.Module = backbone.to(device)
    if compiled:
        network = torch.compile(network, options={"freezing": True})  # type: ignore[assignment]
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers, prefetch_factor=4 if workers else None)
    with torch.inference_mode():
        for batch in loader:
            pooled, maps = backbone.gather(network(batch.to(device)), statistics)
            yield pooled.cpu(), maps.cpu()
