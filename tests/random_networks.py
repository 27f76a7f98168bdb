"""Networks of backbones with random weights."""

from __future__ import annotations

import torch
from torch import nn

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.networks import bare_network


def random_network(name: str) -> nn.Module:
    """The bare network; that of DINOv2 has norms and scales of one, and tokens and positions of zero."""
    if name != dinov2.NAME:
        return bare_network(name)
    with torch.random.fork_rng(devices=[]):
        network = dinov2.create_network().to_empty(device="cpu")
        for tensor_name, tensor in network.state_dict().items():
            tensor.fill_(float(tensor_name.endswith(".gamma")))
        for module in network.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.LayerNorm):
                module.reset_parameters()
        return network
