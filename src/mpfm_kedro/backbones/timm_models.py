"""The models of timm, where it is installed (``pip install 'mpfm_kedro[timm]'``)."""

from __future__ import annotations

import difflib
from types import ModuleType

from torch import nn

from mpfm_kedro.errors import InputError

PREFIX = "timm/"


def create_network(name: str, pretrained: bool = False) -> nn.Module:
    """The model ``timm/<name>``; a transformer accepts images of any size that its patches divide."""
    timm, short = import_timm(name), name.removeprefix(PREFIX)
    try:
        network = timm.create_model(short, pretrained=pretrained, dynamic_img_size=True)
    except TypeError:  # not a transformer with one resolution
        network = timm.create_model(short, pretrained=pretrained)
    if not hasattr(network, "forward_intermediates"):
        raise InputError(f"Backbone '{name}' cannot be used: timm gives no maps of it")
    return network.eval()


def check_timm_name(name: str) -> None:
    """Refuse a name that timm does not know, with the nearest ones."""
    timm, short = import_timm(name), name.removeprefix(PREFIX)
    if not timm.is_model(short):
        near = difflib.get_close_matches(short, timm.list_models(), n=3)
        hint = f"the nearest names are {', '.join(PREFIX + one for one in near)}" if near else "see timm.list_models()"
        raise InputError(f"Unknown backbone '{name}': {hint}")


def import_timm(name: str) -> ModuleType:
    """The package timm, or an error that says how to install it."""
    try:
        import timm
    except ImportError as error:
        raise InputError(f"Backbone '{name}' needs timm: pip install 'mpfm_kedro[timm]'") from error
    return timm
