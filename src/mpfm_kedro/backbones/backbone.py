"""The frozen backbone: from images of bytes to pooled statistics and maps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import fuse_conv_bn_eval
from torchvision.models import get_model
from torchvision.models.feature_extraction import create_feature_extractor

from mpfm_kedro.errors import InputError

Tensors = Mapping[str, Tensor]
Names = Sequence[str]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in 0..1
BATCH_BYTES = 512 << 20  # of the largest map of a batch, in fp32: 32 images of 448 pixels in a ResNet
PROBE = 128  # pixels
AUTO = ["auto"]  # layers that the backbone chooses
STATISTICS = {
    "mean": lambda maps: maps.mean((2, 3)),
    "max": lambda maps: maps.amax((2, 3)),
    "std": lambda maps: (maps - maps.mean((2, 3), keepdim=True)).square().mean((2, 3)).sqrt(),  # faster than std()
}


def import_extra(package: str, name: str) -> ModuleType:
    """A package that a backbone needs, or an error that says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(f"Backbone '{name}' needs {package}: pip install 'mpfm_kedro[timm]'") from error


class Backbone(nn.Module):
    """A torchvision classifier up to the layers whose maps are used, frozen and in eval mode; the base of the others.

    The statistics of ``layers`` make z; ["auto"] is the last maps at the two coarsest resolutions (layer3 and layer4 of
    a ResNet). ``map_layers``, at the resolution of the last of them, make F; ["auto"] is one resolution finer (layer2
    and layer3 of a ResNet), where small defects show.
    """

    version: ClassVar[int] = 1  # raised when a change of the code changes features (tests/test_golden_numbers.py)
    libraries: ClassVar[tuple[str, ...]] = ()  # that decide features besides those of every backbone
    patch: int = 1  # sides of images are multiples of it
    bytes_per_pixel: float  # of an image, in the largest map that the network makes of it, in fp32
    mean: Tensor
    std: Tensor
    network: Any

    def __init__(self, name: str, weights: Tensors, layers: Names, map_layers: Names) -> None:
        super().__init__()
        network = get_model(name, weights=None).eval()
        network.load_state_dict(weights)
        try:
            shapes = _map_shapes(network)
        except (AssertionError, RuntimeError) as error:  # a transformer for one image size, for example
            raise InputError(f"Backbone '{name}' cannot be used, it has no maps of any size: {error}") from error
        last: dict[int, str] = {}  # whole block at each resolution: of its layers, the last one at the least depth
        for layer, (_, side) in shapes.items():
            if side not in last or layer.count(".") <= last[side].count("."):
                last[side] = layer
        coarsest = [last[side] for side in sorted(last)]
        self.choose_layers(name, list(shapes), layers, map_layers, (coarsest[1::-1], coarsest[2:0:-1]))
        wanted = {layer: layer for layer in (*self.map_layers, *self.layers)}
        self.network = fold_batch_norms(create_feature_extractor(network, wanted).eval())
        self.bytes_per_pixel = 4 * max(channels * side**2 for channels, side in shapes.values()) / PROBE**2
        self.freeze()
        self.to(memory_format=torch.channels_last)

    def choose_layers(
        self, name: str, known: Names, layers: Names, map_layers: Names, auto: tuple[Names, Names]
    ) -> None:
        """Set the layers of z and of F, which must be known ones; ["auto"] stands for those of ``auto``."""
        self.layers = tuple(auto[0] if list(layers) == AUTO else layers)
        self.map_layers = tuple(auto[1] if list(map_layers) == AUTO else map_layers)
        unknown = [layer for layer in dict.fromkeys((*self.layers, *self.map_layers)) if layer not in known]
        if unknown or not self.layers or not self.map_layers:
            names = ", ".join(layer for layer in known if layer.count(".") < 2)
            raise InputError(f"Backbone '{name}' has no feature map {unknown or list(layers)}; it has: {names}")

    def freeze(self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        """No gradients; mean and standard deviation, given for pixels in 0..1, are kept for pixels in 0..255."""
        self.requires_grad_(False)
        for buffer, values in (("mean", mean), ("std", std)):
            self.register_buffer(buffer, torch.tensor(values).view(1, 3, 1, 1) * 255, persistent=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → a map (B, C, H', W') of each layer."""
        return self.network(self.normalised(images).contiguous(memory_format=torch.channels_last))

    def normalised(self, images: Tensor) -> Tensor:
        """Bytes as the network has seen them in its training."""
        return (images.float() - self.mean) / self.std

    def features(self, images: Tensor, statistics: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Images (B, 3, S, S) → pooled statistics (B, d) in fp32 and F (B, C, H', W') in fp16."""
        maps = {layer: values.float() for layer, values in self(images).items()}
        pooled = [STATISTICS[name](maps[layer]) for layer in self.layers for name in statistics]
        height, width = maps[self.map_layers[-1]].shape[2:]
        finest = [nn.functional.adaptive_avg_pool2d(maps[layer], (height, width)) for layer in self.map_layers]
        return torch.cat(pooled, dim=1), torch.cat(finest, dim=1).half()

    def accepted_size(self, image_size: int) -> int:
        """The size nearest to ``image_size`` that a whole number of patches fills."""
        return max(1, round(image_size / self.patch)) * self.patch

    def images_per_batch(self, image_size: int, batch_size: int) -> int:
        """At most ``batch_size``, and no more than keep the largest map of a batch within ``BATCH_BYTES``."""
        return max(1, min(batch_size, int(BATCH_BYTES // (self.bytes_per_pixel * image_size**2))))


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
    names = {module: name for name, module in network.named_modules() if name}
    shapes: dict[str, tuple[int, int]] = {}

    def remember(module: nn.Module, _: object, output: object) -> None:
        name = names.get(module)
        if name and isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == output.shape[3] > 1:
            shapes.pop(name, None)
            shapes[name] = output.shape[1], output.shape[3]

    with register_module_forward_hook(remember), torch.inference_mode():
        network(torch.zeros(1, 3, PROBE, PROBE))
    return shapes
