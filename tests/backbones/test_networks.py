"""Backbones by name: what is refused, models of timm, and which code each depends on."""

import sys
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from mpfm_kedro.backbones import origins
from mpfm_kedro.backbones.networks import build_backbone, check_name
from mpfm_kedro.backbones.weights import file_owner, obtain_weights
from mpfm_kedro.errors import InputError
from random_networks import random_network

AUTO = ["auto"]


@pytest.mark.parametrize(
    ("name", "near"), [("resnet81", "resnet18"), ("dino_vits14", "dinov2_vits14"), ("??", "allowed are dinov2_vits14")]
)
def test_unknown_name_gives_the_nearest(name, near):
    with pytest.raises(InputError, match=rf"Unknown backbone .*{near}.*timm/"):
        check_name(name)


def test_timm_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"'timm/resnet18' needs timm: pip install 'mpfm_kedro\[timm\]'"):
        check_name("timm/resnet18")


class TestTimm:
    @pytest.fixture(autouse=True)
    def timm(self):
        return pytest.importorskip("timm")

    def test_maps_of_a_resnet_are_those_of_torchvision(self):
        weights = get_model("resnet18", weights=None).state_dict()
        theirs = build_backbone("timm/resnet18", weights, AUTO, AUTO)
        ours = build_backbone("resnet18", weights, AUTO, AUTO)
        assert (theirs.layers, theirs.map_layers) == (ours.layers, ours.map_layers)
        image = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
        with torch.inference_mode():
            for found, expected in zip(theirs.features(image, ["mean"]), ours.features(image, ["mean"]), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)

    def test_transformer_of_another_size(self):
        name = "timm/vit_tiny_patch16_224"
        backbone = build_backbone(name, random_network(name).state_dict(), AUTO, AUTO)
        assert (backbone.layers, backbone.map_layers) == (("blocks.9", "blocks.11"), ("blocks.9",))
        assert backbone.accepted_size(100) == 96
        with torch.inference_mode():
            pooled, maps = backbone.features(torch.zeros(1, 3, 96, 96, dtype=torch.uint8), ["mean", "std"])
        assert pooled.shape == (1, 2 * 2 * 192) and maps.shape == (1, 192, 6, 6)

    def test_own_weights_and_their_cached_copy(self, tmp_path, monkeypatch):
        name = "timm/mobilenetv3_small_050"
        given = random_network(name).state_dict()
        monkeypatch.setattr(origins, "from_timm", lambda name, scratch: (given, name))
        obtain_weights(name, tmp_path)
        assert [path.name for path in (tmp_path / "timm").iterdir()] == ["mobilenetv3_small_050.safetensors"]
        monkeypatch.delattr(origins, "from_timm")
        assert obtain_weights(name, tmp_path).keys() == given.keys()


def test_file_belongs_to_the_backbone_that_it_fits(tmp_path: Path):
    file = tmp_path / "own.pth"
    torch.save(random_network("dinov2_vits14").state_dict(), file)
    names = ["squeezenet1_1", "dinov2_vits14"]
    assert file_owner(names, file) == "dinov2_vits14"
    assert file_owner(["squeezenet1_1"], file) == "squeezenet1_1"  # whose own check says what does not fit
    with pytest.raises(InputError, match=r"does not fit squeezenet1_1(.|\n)*does not fit alexnet"):
        file_owner(["squeezenet1_1", "alexnet"], file)
