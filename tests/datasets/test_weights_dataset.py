"""The weights dataset: what it gives, what it refuses, and that naming it imports no torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file

from mpfm_kedro.backbones.weights import digest
from mpfm_kedro.datasets.features import BackboneWeightsDataset

NAME = "squeezenet1_1"  # small


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.pth"
    torch.save(torchvision.models.get_model(NAME, weights=None).state_dict(), path)
    return path


def test_load_gives_name_digest_and_tensors(own: Path, tmp_path: Path) -> None:
    (weights,) = BackboneWeightsDataset(str(tmp_path / "cached"), NAME, str(own)).load()
    expected = torch.load(own, weights_only=True)
    assert weights.name == NAME
    assert weights.digest == digest(expected)
    torchvision.models.get_model(NAME, weights=None).load_state_dict(weights.tensors, strict=True)


def test_exists_follows_what_is_there(own: Path, tmp_path: Path) -> None:
    assert not BackboneWeightsDataset(str(tmp_path), NAME).exists()
    (tmp_path / f"{NAME}.safetensors").touch()
    assert BackboneWeightsDataset(str(tmp_path), NAME).exists()
    assert not BackboneWeightsDataset(str(tmp_path), NAME, str(tmp_path / "none.pth")).exists()
    assert BackboneWeightsDataset(str(tmp_path), NAME, str(own)).exists()


def test_several_backbones_are_loaded_in_order_and_the_file_goes_to_the_one_it_fits(own: Path, tmp_path: Path) -> None:
    other = "shufflenet_v2_x0_5"
    save_file(torchvision.models.get_model(other, weights=None).state_dict(), tmp_path / "other.safetensors")
    tensors = load_file(tmp_path / "other.safetensors")
    save_file(tensors, tmp_path / f"{other}.safetensors", {"digest": digest(tensors)})
    dataset = BackboneWeightsDataset(str(tmp_path), [other, NAME], str(own))
    assert dataset.exists()
    assert [one.name for one in dataset.load()] == [other, NAME]
    assert [one.digest for one in dataset.load()] == [digest(tensors), digest(torch.load(own, weights_only=True))]
    assert not BackboneWeightsDataset(str(tmp_path), [other, NAME]).exists()
