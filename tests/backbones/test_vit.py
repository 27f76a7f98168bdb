"""DINOv2: the rebuilt network is that of the ONNX graph, for any size, under every name of its tensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.dinov2 import TransformerBackbone
from mpfm_kedro.backbones.networks import build_backbone
from mpfm_kedro.backbones.origins import KNOWN
from mpfm_kedro.errors import InputError
from random_networks import random_network

AUTO = ["auto"]
WIDTH, GRID = 384, 37


@pytest.fixture(scope="session")
def graph(fetched: Path) -> Path:
    """The ONNX file of the package."""
    return fetched / dinov2.NAME / KNOWN[dinov2.NAME].member


@pytest.fixture(scope="session")
def weights(graph: Path) -> dict[str, Tensor]:
    return dinov2.read_onnx(graph)


@pytest.fixture(scope="session")
def random_weights() -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {name: torch.randn_like(value) / 20 for name, value in random_network(dinov2.NAME).state_dict().items()}


def photograph(size: int) -> Tensor:
    """A smooth image of bytes with some texture, (1, 3, S, S)."""
    grid = torch.linspace(0, 6, size)
    waves = torch.stack([torch.sin(k * grid)[:, None] * torch.cos(grid * (k + 1))[None] for k in (1, 2, 3)])
    return (127 + 110 * waves).to(torch.uint8)[None]


def test_network_is_that_of_the_graph(graph, weights):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    names = {f"blocks.{k}": f"/backbone/encoder/layer.{k}/Add_1_output_0" for k in (0, 6, 9, 11)}
    names["norm"] = "/backbone/layernorm/Add_1_output_0"
    model = onnx.load(graph)
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names.values())
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    backbone, image = TransformerBackbone("", weights, list(names), ["blocks.9"]), photograph(224)
    normalised = (image.float() - backbone.mean) / backbone.std
    with torch.inference_mode():
        found = backbone(image)
    for layer, expected in zip(names, session.run([*names.values()], {"input_image": normalised.numpy()}), strict=True):
        tokens = torch.from_numpy(expected)[:, 1:]
        assert (found[layer].flatten(2).mT - tokens).abs().max() < 1e-4 * tokens.abs().max()


def as_transformers_names_them(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the package transformers, which has three tensors for q, k and v."""
    pairs = (("cls_token", "embeddings.cls_token"), ("pos_embed", "embeddings.position_embeddings"))
    pairs += (("patch_embed.proj", "embeddings.patch_embeddings.projection"), ("blocks.", "encoder.layer."))
    pairs += ((".attn.proj", ".attention.output.dense"), (".ls1.gamma", ".layer_scale1.lambda1"))
    pairs += ((".ls2.gamma", ".layer_scale2.lambda1"),)
    renamed = {}
    for name, tensor in tensors.items():
        name = name.replace("norm.", "layernorm.") if name.startswith("norm.") else name
        for old, new in pairs:
            name = name.replace(old, new)
        if ".attn.qkv" in name:
            for part, own in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[name.replace(".attn.qkv", f".attention.attention.{part}")] = own
        else:
            renamed[name] = tensor
    return renamed


def test_names_of_authors_and_of_transformers_are_understood(random_weights):
    for more in ({}, {"mask_token": torch.zeros(1, WIDTH)}):
        found = dinov2.authors_names(random_weights | more)
        assert found.keys() == random_weights.keys()
    renamed = as_transformers_names_them(random_weights)
    assert not any("qkv" in name for name in renamed)
    found = dinov2.authors_names(renamed | {"embeddings.mask_token": torch.zeros(1, WIDTH)})
    assert found.keys() == random_weights.keys()
    assert all(torch.equal(found[name], value) for name, value in random_weights.items())


def test_tokens_are_those_of_timm_where_no_position_is_interpolated(random_weights):
    backbone = TransformerBackbone("", random_weights, ["blocks.5"], ["blocks.5"])
    image = photograph(14 * GRID)
    with torch.inference_mode():
        (found,) = backbone(image).values()
        normalised = (image.float() - backbone.mean) / backbone.std
        (expected,) = backbone.network.forward_intermediates(normalised, indices=[5], intermediates_only=True)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_positions_of_the_own_grid_are_not_interpolated(random_weights):
    smooth = torch.linspace(0, 1, GRID)[:, None].expand(GRID, GRID).reshape(1, -1, 1).expand(-1, -1, WIDTH)
    embedding = torch.cat([random_weights["pos_embed"][:, :1], smooth], 1)
    backbone = TransformerBackbone("", random_weights | {"pos_embed": embedding}, AUTO, AUTO)
    assert torch.equal(backbone.positions(GRID, GRID), embedding)
    rows = backbone.positions(5, 5)[0, 1:, 0].reshape(5, 5)
    torch.testing.assert_close(rows[:, 0], torch.linspace(0.1, 0.9, 5), rtol=0, atol=0.02)
    torch.testing.assert_close(rows, rows[:, :1].expand(5, 5))


@pytest.mark.parametrize("side", [4, 16, 40])
def test_positions_are_interpolated_as_by_the_authors(random_weights, side):
    """Bicubic without antialiasing: the value at a point is Keys' kernel (a = −0.75) over the 4 × 4 nearest."""
    backbone = TransformerBackbone("", random_weights, AUTO, AUTO)
    kernel = torch.zeros(side, GRID, dtype=torch.float64)
    for row in range(side):
        at = (row + 0.5) * GRID / side - 0.5
        for neighbour in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
            x, a = abs(at - neighbour), -0.75
            near = (a + 2) * x**3 - (a + 3) * x**2 + 1
            weight = near if x <= 1 else a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
            kernel[row, min(max(neighbour, 0), GRID - 1)] += weight
    grid = random_weights["pos_embed"][0, 1:, 7].reshape(GRID, GRID).double()
    found = backbone.positions(side, side)[0, 1:, 7].reshape(side, side)
    torch.testing.assert_close(found.double(), kernel @ grid @ kernel.T, rtol=1e-4, atol=1e-5)


def test_unknown_layer_says_which_there_are(random_weights):
    with pytest.raises(InputError, match=r"no feature map \['layer4'\]; it has: blocks.0, .*blocks.11, norm"):
        build_backbone(dinov2.NAME, random_weights, ["layer4"], AUTO)


@given(size=st.integers(32, 4096))
@settings(max_examples=50, deadline=None)
def test_accepted_size_is_the_nearest_multiple_of_a_patch(size):
    accepted = TransformerBackbone.accepted_size(TransformerBackbone, size)  # a class has the patch, too
    assert accepted % 14 == 0 and accepted > 0
    assert abs(accepted - size) <= 7
    assert Backbone.accepted_size(Backbone, size) == size
