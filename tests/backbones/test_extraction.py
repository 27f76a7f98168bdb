"""The frozen backbone: which layers it reads, and that its numbers are the network's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torchvision.models import get_model
from torchvision.models.vision_transformer import VisionTransformer
from torchvision.transforms.functional import normalize

from mpfm_kedro.backbones import extraction
from mpfm_kedro.backbones.extraction import Backbone, ViewImages, extract
from mpfm_kedro.errors import InputError
from mpfm_kedro.io.images import ImageLoader

STATISTICS = ["mean", "max", "std"]
SIZE = 64


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_model("resnet18", weights=None).state_dict()


@pytest.fixture(scope="module")
def backbone(weights) -> Backbone:
    return Backbone("resnet18", weights, ["auto"], ["auto"])


def test_auto_reads_the_two_coarsest_maps_of_a_resnet(backbone):
    assert (backbone.layers, backbone.map_layers) == (("layer3", "layer4"), ("layer2", "layer3"))
    maps = backbone(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8))
    assert {name: tuple(layer.shape) for name, layer in maps.items()} == {
        "layer2": (2, 128, 8, 8),
        "layer3": (2, 256, 4, 4),
        "layer4": (2, 512, 2, 2),
    }


def test_auto_reads_two_maps_of_another_network():
    network = get_model("mobilenet_v2", weights=None)
    backbone = Backbone("mobilenet_v2", network.state_dict(), ["auto"], ["auto"])
    maps = backbone(torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8))
    assert [maps[layer].shape[2] for layer in backbone.layers] == [4, 2]
    assert [maps[layer].shape[2] for layer in backbone.map_layers] == [8, 4]


def test_named_layers_are_read_in_the_order_given(weights):
    backbone = Backbone("resnet18", weights, ["layer4", "layer2.0"], ["layer1", "layer4"])
    images = torch.randint(0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8)
    maps = backbone(images)
    z, finest = backbone.features(images, ["mean"])
    torch.testing.assert_close(z, torch.cat([maps[name].mean((2, 3)) for name in ("layer4", "layer2.0")], dim=1))
    assert tuple(finest.shape) == (1, 64 + 512, 2, 2)
    torch.testing.assert_close(finest[:, 64:].float(), maps["layer4"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layers", [["layer5"], ["layer3", "layr4"], ["fc"], ["avgpool"]])
def test_layer_without_a_map_is_an_error_that_names_those_with_one(layers, weights):
    with pytest.raises(InputError, match="layer4") as raised:
        Backbone("resnet18", weights, layers, ["auto"])
    assert layers[-1] in str(raised.value)


def test_network_without_maps_is_an_error(monkeypatch):
    def transformer(name: str, weights: None) -> VisionTransformer:
        return VisionTransformer(image_size=32, patch_size=8, num_layers=1, num_heads=1, hidden_dim=8, mlp_dim=8)

    monkeypatch.setattr(extraction, "get_model", transformer)
    with pytest.raises(InputError, match="vit_b_16"):
        Backbone("vit_b_16", transformer("", None).state_dict(), ["auto"], ["auto"])


def test_looking_at_images_changes_nothing_in_the_backbone(backbone):
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    maps = backbone(torch.full((2, 3, SIZE, SIZE), 200, dtype=torch.uint8))
    assert not any(layer.requires_grad for layer in maps.values())
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_pooled_statistics_are_those_of_the_network_s_own_maps(weights, backbone):
    images = torch.randint(0, 256, (3, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    network = get_model("resnet18", weights=None).eval()
    network.load_state_dict(weights)
    seen: dict[str, torch.Tensor] = {}
    for layer in ("layer3", "layer4"):
        network.get_submodule(layer).register_forward_hook(
            lambda _, __, output, layer=layer: seen.update({layer: output.detach().double()})
        )
    with torch.inference_mode():
        network(normalize(images / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        z, _ = backbone.features(images, STATISTICS)
    expected = []
    for layer in ("layer3", "layer4"):
        flat = seen[layer].flatten(2).numpy()
        expected += [flat.mean(2), flat.max(2), flat.std(2)]
    np.testing.assert_allclose(z.numpy(), np.concatenate(expected, axis=1), rtol=1e-3, atol=1e-4)
    assert z.dtype == torch.float32
    assert z.shape == (3, 3 * (256 + 512))


@pytest.fixture
def dataset(tmp_path: Path) -> ViewImages:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(5):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
        view, crop = ("hflip", "") if number % 2 else ("original", "5,0,45,40")
        rows.append({"path": f"{number}.png", "crop": crop, "view": view, "content_hash": str(number)})
    loader = ImageLoader("folder", tmp_path, 10**6, tmp_path / "files.parquet")
    return ViewImages(pd.DataFrame(rows), loader, SIZE)


def extracted(backbone: Backbone, dataset: ViewImages, batch_size: int, workers: int = 0) -> tuple[torch.Tensor, ...]:
    batches = list(extract(backbone, dataset, STATISTICS, torch.device("cpu"), batch_size, workers))
    return torch.cat([pooled for pooled, _ in batches]), torch.cat([maps for _, maps in batches])


def test_images_are_cropped_turned_and_resized(dataset):
    first = Image.open(dataset.images.folder / "0.png").crop((5, 0, 45, 40)).resize((SIZE, SIZE), Image.BILINEAR)
    np.testing.assert_array_equal(dataset[0].permute(1, 2, 0).numpy(), np.asarray(first))
    second = Image.open(dataset.images.folder / "1.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    np.testing.assert_array_equal(
        dataset[1].permute(1, 2, 0).numpy(), np.asarray(second.resize((SIZE, SIZE), Image.BILINEAR))
    )


def test_the_company_in_a_batch_changes_nothing(backbone, dataset):
    pooled, maps = extracted(backbone, dataset, batch_size=5)
    assert (pooled.dtype, maps.dtype) == (torch.float32, torch.float16)
    assert tuple(maps.shape) == (5, 128 + 256, 4, 4)
    for batch_size in (1, 2):
        alone, alone_maps = extracted(backbone, dataset, batch_size)
        torch.testing.assert_close(alone, pooled, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone_maps, maps, rtol=2e-3, atol=1e-3)


def test_decoding_in_another_process_keeps_the_order(backbone, dataset):
    pooled, _ = extracted(backbone, dataset, batch_size=2)
    torch.testing.assert_close(extracted(backbone, dataset, batch_size=2, workers=1)[0], pooled)
