"""Backbone weights: from the first origin that has them, verified by digest, cached as safetensors.

A file that the user names takes precedence over a cached copy, and that over the origins. Whatever the origin, the
digest decides.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.networks import check_name, random_network
from mpfm_kedro.backbones.origins import KNOWN, Obtained, Origin, origins_of, read_tensors
from mpfm_kedro.errors import InputError

logger = logging.getLogger(__name__)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 over name and bytes of each tensor, in the order of the names.

    ``num_batches_tracked`` is excluded: inference does not use it, and some files lack it.
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
    """The pretrained weights of a backbone, or those of the user's own file.

    Args:
        name: A backbone (``networks.check_name``).
        folder: Where verified copies are cached, as ``<name>.safetensors``.
        weights_file: A state dict (.pth, .pt or .safetensors) that takes precedence over every other origin.
            It may hold other weights on purpose; then it is used, and not cached in ``folder``.
        origins: Where to look when there is neither a file nor a cached copy.

    Raises:
        InputError: The name is unknown, the file does not fit the network, no origin has the weights, their
            digest is not the known one, or the folder cannot be written.
    """
    check_name(name)
    if weights_file is not None:
        return _use_file(name, folder, weights_file)
    cached = _read_cached(name, folder)
    return cached if cached is not None else _obtain(name, folder, origins_of(name) if origins is None else origins)


def file_owner(names: Sequence[str], file: Path) -> str:
    """Which of these backbones the user's file belongs to: the only one, or the one that it fits."""
    if len(names) == 1:
        return names[0]
    problems = []
    for name in names:
        try:
            check_fit(name, _read_file(name, file), str(file))
        except InputError as error:
            problems.append(error.message)
        else:
            return name
    raise InputError("\n".join(problems))


def _read_file(name: str, file: Path) -> dict[str, Tensor]:
    tensors = read_tensors(file)
    return dinov2.authors_names(tensors) if name == dinov2.NAME else tensors


def _use_file(name: str, folder: Path, file: Path) -> dict[str, Tensor]:
    tensors = _read_file(name, file)
    check_fit(name, tensors, str(file))
    found = digest(tensors)
    if name not in KNOWN or found != KNOWN[name].digest:
        logger.info("%s: digest %s is not the known one of %s; used as your own weights", file, found, name)
    elif _read_cached(name, folder) is None:
        with _scratch(name, folder) as scratch:
            _cache(name, folder, Obtained(tensors, str(file)), scratch)
    return tensors


def _obtain(name: str, folder: Path, origins: Sequence[Origin]) -> dict[str, Tensor]:
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
            _cache(name, folder, obtained, scratch)
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
    expected, found = _shapes(random_network(name).state_dict()), _shapes(tensors)
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
        (folder / name).parent.mkdir(parents=True, exist_ok=True)  # timm/<name> is in a folder of its own
        with tempfile.TemporaryDirectory(prefix=".weights-", dir=folder, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)
    except OSError as error:
        raise InputError(f"Cannot write weights to {folder}: {error.strerror or error}") from error


def _cache(name: str, folder: Path, obtained: Obtained, scratch: Path) -> None:
    metadata = {"name": name, "digest": digest(obtained.tensors), "origin": obtained.source}
    partial = scratch / "weights.safetensors"
    partial.write_bytes(save(obtained.tensors, metadata))
    cached = partial.replace(folder / f"{name}.safetensors")
    logger.info("Weights of %s from %s cached as %s", name, obtained.source, cached)


def _read_cached(name: str, folder: Path) -> dict[str, Tensor] | None:
    path = folder / f"{name}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, SafetensorError) as error:
        logger.warning("The cached copy %s cannot be read (%s) and is obtained again", path, error)
        return None
    found, expected = digest(tensors), KNOWN[name].digest if name in KNOWN else metadata.get("digest")
    if found == expected:
        return tensors
    logger.warning("The cached copy %s has digest %s instead of %s and is obtained again", path, found, expected)
    return None
