"""The frozen backbone: which layers it reads, and that its numbers are the network's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from scipy.stats import spearmanr
from torch import nn
from torchvision.models import get_model
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.transforms.functional import normalize

from mpfm_kedro.backbones import backbone as module
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import ViewImages, extract
from mpfm_kedro.backbones.store import Rows, row_keys
from mpfm_kedro.backbones.weights import obtain_weights
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import FeatureParameters

PROJECT = Path(__file__).parents[2]
BASE = yaml.safe_load((PROJECT / "conf/base/parameters_features.yml").read_text())["features"]
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


def test_named_layers_are_read_in_the_order_given(weights):
    backbone = Backbone("resnet18", weights, ["layer4", "layer2.0"], ["layer1", "layer4"])
    images = torch.randint(0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8)
    maps = backbone(images)
    z, finest = backbone.features(images, ["mean"])
    torch.testing.assert_close(z, torch.cat([maps[name].mean((2, 3)) for name in ("layer4", "layer2.0")], dim=1))
    assert tuple(finest.shape) == (1, 64 + 512, 2, 2)
    torch.testing.assert_close(finest[:, 64:].float(), maps["layer4"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "remaining"), [("resnet18", 0), ("mobilenet_v2", 0), ("densenet121", 62)])
def test_folded_batch_norms_change_nothing(name, remaining):
    """DenseNet normalises before it convolves: half of its norms follow no convolution."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = get_model(name, weights=None).eval()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                for values in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                    values.uniform_(0.5, 1.5)
        images = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8)
    folded = Backbone(name, network.state_dict(), ["auto"], ["auto"])
    layers = {layer: layer for layer in (*folded.layers, *folded.map_layers)}
    with torch.inference_mode():
        expected = create_feature_extractor(network, layers)((images.float() - folded.mean) / folded.std)
        for layer, maps in folded(images).items():
            torch.testing.assert_close(maps, expected[layer], rtol=1e-4, atol=1e-4 * float(expected[layer].abs().max()))
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.network.modules()) == remaining


def test_convolution_that_is_read_itself_keeps_its_batch_norm(weights):
    backbone = Backbone("resnet18", weights, ["layer4", "layer4.1.conv2"], ["auto"])
    assert isinstance(backbone.network.get_submodule("layer4.1.bn2"), nn.BatchNorm2d)
    assert isinstance(backbone.network.get_submodule("layer4.1.bn1"), nn.Identity)


@pytest.mark.parametrize("layers", [["layer5"], ["layer3", "layr4"], ["fc"], ["avgpool"]])
def test_layer_without_a_map_is_an_error_that_names_those_with_one(layers, weights):
    with pytest.raises(InputError, match="layer4") as raised:
        Backbone("resnet18", weights, layers, ["auto"])
    assert layers[-1] in str(raised.value)


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
    return ViewImages(pd.DataFrame(rows), loader.read, SIZE)


def parameters(**changes: Any) -> FeatureParameters:
    return FeatureParameters(**(BASE | {"workers": 0} | changes))


def extracted(backbone: Backbone, dataset: ViewImages, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = Rows.join(extract(backbone, dataset, parameters(**changes), torch.device("cpu")))
    assert rows.keys == row_keys(dataset.views).tolist()
    return torch.from_numpy(rows.pooled), torch.from_numpy(rows.maps)


def pixels(dataset: ViewImages, i: int) -> np.ndarray:
    key, image = dataset[i]
    assert key == row_keys(dataset.views).iloc[i]
    return image.permute(1, 2, 0).numpy()


def test_images_are_cropped_augmented_and_resized(dataset, tmp_path):
    first = Image.open(tmp_path / "0.png").crop((5, 0, 45, 40)).resize((SIZE, SIZE), Image.BILINEAR)
    np.testing.assert_array_equal(pixels(dataset, 0), np.asarray(first))
    second = Image.open(tmp_path / "1.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    np.testing.assert_array_equal(pixels(dataset, 1), np.asarray(second.resize((SIZE, SIZE), Image.BILINEAR)))


def test_crops_of_one_file_get_draws_of_their_own(dataset, tmp_path):
    """The file repeats the same tile: the same draw would give the same pixels."""
    tile = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(np.concatenate([tile, tile], axis=1)).save(tmp_path / "0.png")
    row = {"path": "0.png", "view": "cutmix-0", "content_hash": "hash"}
    crops = replace(dataset, views=pd.DataFrame([row | {"crop": "0,0,40,40"}, row | {"crop": "40,0,80,40"}]))
    assert (pixels(crops, 0) != pixels(crops, 1)).any()


def test_the_company_in_a_batch_changes_nothing(backbone, dataset):
    pooled, maps = extracted(backbone, dataset, batch_size=5)
    assert (pooled.dtype, maps.dtype) == (torch.float32, torch.float16)
    assert tuple(maps.shape) == (5, 128 + 256, 4, 4)
    for batch_size in (1, 2):
        alone, alone_maps = extracted(backbone, dataset, batch_size=batch_size)
        torch.testing.assert_close(alone, pooled, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone_maps, maps, rtol=2e-3, atol=1e-3)


def test_batches_are_bounded_in_bytes(backbone, dataset, monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 2 * backbone.bytes_per_pixel * SIZE**2)
    batches = list(extract(backbone, dataset, parameters(), torch.device("cpu")))
    assert [len(batch.keys) for batch in batches] == [2, 2, 1]


@pytest.fixture(scope="module")
def imagenet() -> dict[str, torch.Tensor]:
    return obtain_weights("resnet18", PROJECT / "data/01_raw/weights")


def textures(folder: Path, n: int) -> ViewImages:
    """Stripes of one direction with noise; an ever larger part of the later half is disturbed."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(n):
        y, x = np.mgrid[:64, :64]
        image = 128 + 60 * np.sin(x / 3 + y / 7 + rng.uniform(0, 6)) + rng.normal(0, 12, (64, 64))
        side = max(0, number - n // 2)
        image[10 : 10 + side, 10 : 10 + side] = rng.uniform(0, 255)
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")
        rows.append({"path": f"{number}.png", "crop": "", "view": "original", "content_hash": str(number)})
    return ViewImages(pd.DataFrame(rows), ImageLoader("folder", folder, 10**6, folder / "files.parquet").read, SIZE)


def distance(pooled: torch.Tensor, n_normal: int) -> np.ndarray:
    """Mahalanobis distance with a diagonal covariance, of all images to the first ones."""
    values = pooled.double().numpy()
    mean, std = values[:n_normal].mean(0), values[:n_normal].std(0)
    return (((values - mean) / (std + 1e-3 * std.max())) ** 2).sum(1)


def test_bf16_ranks_images_as_fp32_does(imagenet, tmp_path):
    n = 80
    backbone, images = Backbone("resnet18", imagenet, ["auto"], ["auto"]), textures(tmp_path, n)
    (exact, exact_maps), (rounded, rounded_maps) = (
        extracted(backbone, images, precision=precision) for precision in ("fp32", "bf16")
    )
    assert (rounded.dtype, rounded_maps.dtype) == (exact.dtype, exact_maps.dtype)
    assert not torch.equal(rounded, exact)
    assert spearmanr(distance(exact, n // 2), distance(rounded, n // 2)).statistic > 0.99


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_features_on_a_gpu_are_those_of_the_cpu(weights, backbone, dataset):
    pooled, maps = extracted(backbone, dataset)
    on_gpu = Backbone("resnet18", weights, ["auto"], ["auto"])
    found = Rows.join(extract(on_gpu, dataset, parameters(), torch.device("cuda")))
    torch.testing.assert_close(torch.from_numpy(found.pooled), pooled, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(torch.from_numpy(found.maps), maps, rtol=1e-2, atol=1e-2)
