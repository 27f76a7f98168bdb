"""The frozen backbone over many images: decoding in worker processes, batches, pooled statistics and maps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor, fx, nn
from torch.nn.utils import fuse_conv_bn_eval
from torch.utils.data import DataLoader, Dataset
from torchvision.models import get_model
from torchvision.models.feature_extraction import create_feature_extractor

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.views import apply_view
from mpfm_kedro.parameters import FeatureParameters

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in 0..1
BATCH_BYTES = 512 << 20  # of the largest map of a batch, in fp32: 32 images of 448 pixels in a ResNet
PROBE = 128  # pixels
AUTO = ["auto"]  # layers that the backbone chooses
STATISTICS = {
    "mean": lambda maps: maps.mean((2, 3)),
    "max": lambda maps: maps.amax((2, 3)),
    "std": lambda maps: (maps - maps.mean((2, 3), keepdim=True)).square().mean((2, 3)).sqrt(),  # faster than std()
}


class Backbone(nn.Module):
    """A torchvision classifier up to the layers whose maps are used, frozen and in eval mode.

    Args:
        name: of the classifier.
        weights: its tensors.
        layers: whose statistics make z; ["auto"] is the last maps at the two coarsest resolutions (layer3 and layer4
            of a ResNet).
        map_layers: whose maps, at the resolution of the last of them, make F; ["auto"] is one resolution finer (layer2
            and layer3 of a ResNet), where small defects show.
    """

    version: ClassVar[int] = 1  # raised when a change of the code changes features (tests/test_golden_numbers.py)
    libraries: ClassVar[tuple[str, ...]] = ()  # that decide features besides those of every backbone
    mean: Tensor
    std: Tensor
    network: Any

    def __init__(
        self, name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
    ) -> None:
        super().__init__()
        network = get_model(name, weights=None).eval()
        network.load_state_dict(weights)
        network.requires_grad_(False)
        try:
            shapes = _map_shapes(network)
        except (AssertionError, RuntimeError) as error:  # a transformer for one image size, for example
            raise InputError(f"Backbone '{name}' cannot be used, it has no maps of any size: {error}") from error
        sides = {name: side for name, (_, side) in shapes.items()}
        by_resolution = [name for _, name in sorted((side, name) for name, side in _last_of_each(sides).items())]
        self.choose_layers(name, list(sides), layers, map_layers, (by_resolution[1::-1], by_resolution[2:0:-1]))
        wanted = {layer: layer for layer in (*self.map_layers, *self.layers)}
        self.network = fold_batch_norms(create_feature_extractor(network, wanted).eval())
        self._bytes_per_pixel = 4 * max(channels * side**2 for channels, side in shapes.values()) / PROBE**2
        self.normalise_by()
        self.to(memory_format=torch.channels_last)

    def choose_layers(
        self,
        name: str,
        known: Sequence[str],
        layers: Sequence[str],
        map_layers: Sequence[str],
        auto: tuple[Sequence[str], Sequence[str]],
    ) -> None:
        """Set the layers of z and of F, which must be known ones; ["auto"] stands for those of ``auto``."""
        self.layers = tuple(auto[0] if list(layers) == AUTO else layers)
        self.map_layers = tuple(auto[1] if list(map_layers) == AUTO else map_layers)
        unknown = [layer for layer in dict.fromkeys((*self.layers, *self.map_layers)) if layer not in known]
        if unknown or not self.layers or not self.map_layers:
            names = ", ".join(layer for layer in known if layer.count(".") < 2)
            raise InputError(f"Backbone '{name}' has no feature map {unknown or list(layers)}; it has: {names}")

    def normalise_by(self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        """Set mean and standard deviation of pixels in 0..1, for pixels in 0..255."""
        for buffer, values in (("mean", mean), ("std", std)):
            self.register_buffer(buffer, torch.tensor(values).view(1, 3, 1, 1) * 255, persistent=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → a map (B, C, H', W') of each layer."""
        normalised = (images.float() - self.mean) / self.std
        return self.network(normalised.contiguous(memory_format=torch.channels_last))

    def features(self, images: Tensor, statistics: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Images (B, 3, S, S) → pooled statistics (B, d) in fp32 and F (B, C, H', W') in fp16."""
        return self.gather(self(images), statistics)

    def gather(self, maps: Mapping[str, Tensor], statistics: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Z and F from the maps of the layers."""
        maps = {layer: values.float() for layer, values in maps.items()}
        pooled = [STATISTICS[name](maps[layer]) for layer in self.layers for name in statistics]
        height, width = maps[self.map_layers[-1]].shape[2:]
        finest = [nn.functional.adaptive_avg_pool2d(maps[layer], (height, width)) for layer in self.map_layers]
        return torch.cat(pooled, dim=1), torch.cat(finest, dim=1).half()

    def largest_map_bytes(self, image_size: int) -> int:
        """Bytes of the largest map that the network makes of one image, in fp32."""
        return math.ceil(self._bytes_per_pixel * image_size**2)


def fold_batch_norms(network: fx.GraphModule) -> fx.GraphModule:
    """Each frozen batch norm that follows a convolution becomes part of it: the same function, one pass less.

    γ (W x − m) / √(v + ε) + β = W' x + b' with W' = γ W / √(v + ε) and b' = β − γ m / √(v + ε). Where something else
    reads the convolution, too, or it is used twice, nothing is folded.
    """
    calls = [node for node in network.graph.nodes if node.op == "call_module"]
    uses = Counter(node.target for node in calls)
    pairs = [
        (before.target, node.target)
        for node in calls
        if (before := node.args[0]) in calls and len(before.users) == 1 == uses[before.target] == uses[node.target]
    ]
    for name in uses:  # torchvision's blocks of convolution, norm and activation are one call
        module = network.get_submodule(name)
        if isinstance(module, nn.Sequential):
            pairs += pairwise(f"{name}.{child}" for child, _ in module.named_children())
    for first, second in pairs:
        convolution, norm = network.get_submodule(first), network.get_submodule(second)
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            network.set_submodule(first, fuse_conv_bn_eval(convolution.eval(), norm.eval()))
            network.set_submodule(second, nn.Identity())
    return network


def _map_shapes(network: nn.Module) -> dict[str, tuple[int, int]]:
    """Modules whose output is a map, in order of execution, with its channels and side for an image of PROBE pixels."""
    shapes: dict[str, tuple[int, int]] = {}
    hooks = []
    for name, module in network.named_modules():

        def remember(_: nn.Module, __: object, output: object, name: str = name) -> None:
            if name and isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == output.shape[3] > 1:
                shapes.pop(name, None)
                shapes[name] = output.shape[1], output.shape[3]

        hooks.append(module.register_forward_hook(remember))
    try:
        with torch.inference_mode():
            network(torch.zeros(1, 3, PROBE, PROBE))
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _last_of_each(sides: Mapping[str, int]) -> dict[str, int]:
    """The last whole block at each resolution: of the layers there, the last one at the least depth."""
    last: dict[int, str] = {}
    for name, side in sides.items():
        if side not in last or name.count(".") <= last[side].count("."):
            last[side] = name
    return {name: side for side, name in last.items()}


@dataclass(frozen=True)
class ViewImages(Dataset):
    """Decoded, augmented and resized images of a table of views (path, crop, pixel_range, view, content_hash).

    ``read(path, crop, pixel_range)`` gives an image or crop as RGB.
    """

    views: pd.DataFrame
    read: Callable[[str, str, str], Image.Image]
    image_size: int

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, i: int) -> tuple[int, Tensor]:
        """The position in the table and the image (3, S, S) of bytes."""
        row = self.views.iloc[i]
        image = self.read(row["path"], row["crop"], row.get("pixel_range", ""))
        image = apply_view(image, row["view"], row["content_hash"], row["crop"])
        return i, to_pixels(image, self.image_size)


def to_pixels(image: Image.Image, image_size: int) -> Tensor:
    """An RGB image as the backbone reads it: resized to S × S pixels, (3, S, S) of bytes."""
    resized = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


@dataclass(frozen=True)
class ExtractedBatch:
    """Features of some images, on the CPU.

    Args:
        positions: where the images are in the dataset (B,).
        pooled: statistics z (B, d), fp32.
        maps: F (B, C, H', W'), fp16.
    """

    positions: Tensor
    pooled: Tensor
    maps: Tensor


def images_per_batch(backbone: Backbone, image_size: int, batch_size: int) -> int:
    """At most ``batch_size``, and no more than keep the largest map of a batch within ``BATCH_BYTES``."""
    return max(1, min(batch_size, BATCH_BYTES // backbone.largest_map_bytes(image_size)))


def extract(
    backbone: Backbone, dataset: ViewImages, parameters: FeatureParameters, device: torch.device
) -> Iterator[ExtractedBatch]:
    """Pooled statistics and maps of the backbone, batch by batch."""
    network: nn.Module = backbone.to(device)
    if parameters.compile:
        network = torch.compile(network, options={"freezing": True})  # type: ignore[assignment]
    loader = DataLoader(
        dataset,
        batch_size=images_per_batch(backbone, dataset.image_size, parameters.batch_size),
        num_workers=parameters.workers,
        prefetch_factor=4 if parameters.workers else None,
        pin_memory=device.type == "cuda",
    )
    for positions, images in loader:
        with torch.inference_mode(), autocast(device, parameters.precision):
            maps = network(images.to(device, non_blocking=True))
            pooled, finest = backbone.gather(maps, parameters.statistics)
        yield ExtractedBatch(positions, pooled.cpu(), finest.cpu())


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which the network computes; statistics are always fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
