"""Backbones by name: torchvision's classifiers, DINOv2, and the models of timm, an extra."""

import difflib
import warnings

import torch
import torchvision
from torch import Tensor, nn

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.backbone import Backbone, Names, Tensors, import_extra
from mpfm_kedro.errors import InputError

TIMM = "timm/"  # before the name of one of its models


def check_name(name: str) -> None:
    """Refuse an unknown name, with the nearest ones, and one whose package is not installed."""
    if name.startswith(TIMM):
        names, model = [TIMM + known for known in import_extra("timm", name).list_models()], name.partition(".")[0]
        others = "see timm.list_models()"
    else:
        names, model = [dinov2.NAME, *torchvision.models.list_models(module=torchvision.models)], name
        others = f"allowed are {', '.join(names)}"
    if name == dinov2.NAME:
        import_extra("timm", name)
    if model not in names:
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"the nearest names are {', '.join(near)}" if near else others
        raise InputError(f"Unknown backbone '{name}': {hint}, or {TIMM}<name of a model of timm>")


def bare_network(name: str) -> nn.Module:
    """The network with random weights, or without any: it says which tensors it needs."""
    if name == dinov2.NAME:
        return dinov2.create_network()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):  # about initial values
        return timm_network(name) if name.startswith(TIMM) else torchvision.models.get_model(name, weights=None)


def build_backbone(name: str, weights: Tensors, layers: Names, map_layers: Names) -> Backbone:
    """The backbone of this name with these weights; ["auto"] leaves the choice of layers to it."""
    kind = dinov2.TransformerBackbone if name == dinov2.NAME else TimmBackbone if name.startswith(TIMM) else Backbone
    return kind(name, weights, layers, map_layers)


def timm_network(name: str, pretrained: bool = False) -> nn.Module:
    """The model ``timm/<name>``; a transformer accepts images of any size that its patches divide."""
    timm, short = import_extra("timm", name), name.removeprefix(TIMM)
    try:
        network = timm.create_model(short, pretrained=pretrained, dynamic_img_size=True)
    except TypeError:  # not a transformer with one resolution
        network = timm.create_model(short, pretrained=pretrained)
    if not hasattr(network, "forward_intermediates"):
        raise InputError(f"Backbone '{name}' cannot be used: timm gives no maps of it")
    return network.eval()


class TimmBackbone(Backbone):
    """A model of timm up to the layers whose maps are used, frozen and in eval mode.

    Layers have the names of ``feature_info``. ["auto"] is the last two stages for z and the two before the last for F;
    in a transformer with one resolution, the block after three quarters of the depth, for z with the last one.
    """

    version = 1
    libraries = ("timm",)

    def __init__(self, name: str, weights: Tensors, layers: Names, map_layers: Names) -> None:
        nn.Module.__init__(self)  # not that of torchvision's networks
        self.network = timm_network(name)
        self.network.load_state_dict(weights)
        stages = list(self.network.feature_info)
        names, reductions = [stage["module"] for stage in stages], [int(stage["reduction"]) for stage in stages]
        auto = names[-2:], names[-3:-1]
        if len(set(reductions)) == 1:  # a transformer with one resolution
            self.patch, late = reductions[0], names[3 * len(names) // 4]
            auto = [late, names[-1]], [late]
        self.choose_layers(name, names, layers, map_layers, auto)
        self._wanted = [layer for layer in names if layer in {*self.layers, *self.map_layers}]
        self._indices = [names.index(layer) for layer in self._wanted]
        self.bytes_per_pixel = 16 * max(stage["num_chs"] / stage["reduction"] ** 2 for stage in stages)
        self.freeze(self.network.pretrained_cfg["mean"], self.network.pretrained_cfg["std"])

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → a map (B, C, H', W') of each layer."""
        normalised = self.normalised(images)
        try:
            maps = self.network.forward_intermediates(normalised, indices=self._indices, intermediates_only=True)
        except AssertionError as error:  # a transformer for one image size
            raise InputError(f"Backbone cannot be used at image_size {images.shape[-1]}: {error}") from error
        return dict(zip(self._wanted, maps, strict=True))
