"""Models of timm, an extra, as backbones: their stages or blocks are maps."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

from torch import Tensor, nn

from mpfm_kedro.backbones.extraction import Backbone
from mpfm_kedro.errors import InputError

PREFIX = "timm/"


def import_extra(package: str, name: str) -> ModuleType:
    """A package that a backbone needs, or an error that says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(f"Backbone '{name}' needs {package}: pip install 'mpfm_kedro[timm]'") from error


def create_network(name: str, pretrained: bool = False) -> nn.Module:
    """The model ``timm/<name>``; a transformer accepts images of any size that its patches divide."""
    timm, short = import_extra("timm", name), name.removeprefix(PREFIX)
    try:
        network = timm.create_model(short, pretrained=pretrained, dynamic_img_size=True)
    except TypeError:  # not a transformer with one resolution
        network = timm.create_model(short, pretrained=pretrained)
    if not hasattr(network, "forward_intermediates"):
        raise InputError(f"Backbone '{name}' cannot be used: timm gives no maps of it")
    return network.eval()


def check_timm_name(name: str) -> None:
    """Refuse a name that timm does not know, with the nearest ones."""
    timm, short = import_extra("timm", name), name.removeprefix(PREFIX)
    if not timm.is_model(short):
        near = difflib.get_close_matches(short, timm.list_models(), n=3)
        hint = f"the nearest names are {', '.join(PREFIX + one for one in near)}" if near else "see timm.list_models()"
        raise InputError(f"Unknown backbone '{name}': {hint}")


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
    libraries = ("timm",)

    def __init__(
        self, name: str, weights: Mapping[str, Tensor], layers: Sequence[str], map_layers: Sequence[str]
    ) -> None:
        nn.Module.__init__(self)  # not that of torchvision's networks
        self.network = create_network(name)
        self.network.load_state_dict(weights)
        self.requires_grad_(False)
        stages = list(self.network.feature_info)
        names, reductions = [stage["module"] for stage in stages], [int(stage["reduction"]) for stage in stages]
        one_resolution = len(set(reductions)) == 1
        self.patch = reductions[0] if one_resolution else 1
        late = names[3 * len(names) // 4]
        auto, map_auto = ([late, names[-1]], [late]) if one_resolution else (names[-2:], names[-3:-1])
        self.choose_layers(name, names, layers, map_layers, (auto, map_auto))
        self._wanted = [layer for layer in names if layer in {*self.layers, *self.map_layers}]
        self._indices = [names.index(layer) for layer in self._wanted]
        self._bytes_per_pixel = 16 * max(stage["num_chs"] / stage["reduction"] ** 2 for stage in stages)
        self.normalise_by(self.network.pretrained_cfg["mean"], self.network.pretrained_cfg["std"])

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → a map (B, C, H', W') of each layer."""
        normalised = (images.float() - self.mean) / self.std
        try:
            maps = self.network.forward_intermediates(normalised, indices=self._indices, intermediates_only=True)
        except AssertionError as error:  # a transformer for one image size
            raise InputError(f"Backbone cannot be used at image_size {images.shape[-1]}: {error}") from error
        return dict(zip(self._wanted, maps, strict=True))
