"""Names and networks of backbones: torchvision's classifiers, DINOv2, the models of timm where it is installed."""

from __future__ import annotations

import difflib
import warnings

import torch
import torchvision
from torch import nn

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.timm_backbone import PREFIX, check_timm_name, create_network, import_extra
from mpfm_kedro.errors import InputError


def check_name(name: str) -> None:
    """Refuse a name that is no backbone, with the nearest ones, and one whose package is not installed."""
    if name.startswith(PREFIX):
        return check_timm_name(name)
    names = [dinov2.NAME, *torchvision.models.list_models(module=torchvision.models)]
    if name == dinov2.NAME:
        import_extra("timm", name)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"the nearest names are {', '.join(near)}" if near else f"allowed are {', '.join(names)}"
        raise InputError(f"Unknown backbone '{name}': {hint}, or {PREFIX}<name of a model of timm>")


def random_network(name: str) -> nn.Module:
    """The bare network with random weights: it says which tensors it needs."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about initial values, which are not used
        if name == dinov2.NAME:
            return dinov2.random_network()
        return create_network(name) if name.startswith(PREFIX) else torchvision.models.get_model(name, weights=None)
