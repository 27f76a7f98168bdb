"""Backbone weights: from the first origin that has them, verified by digest, cached as safetensors.

A file that the user names takes precedence over a cached copy, and that over the origins. Whatever the origin, the
digest decides.
"""

import hashlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mpfm_kedro.atomic import replacing
from mpfm_kedro.backbones import dinov2
from mpfm_kedro.backbones.networks import bare_network, check_name
from mpfm_kedro.backbones.origins import KNOWN, Origins, origins_of, read_tensors
from mpfm_kedro.errors import InputError

logger = logging.getLogger(__name__)
PROBLEMS = 500  # characters about what does not fit


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
    name: str, folder: Path, weights_file: Path | None = None, origins: Origins | None = None
) -> dict[str, Tensor]:
    """The pretrained weights of a backbone, or those of the user's own file (.pth, .pt or .safetensors).

    The file may hold other weights on purpose; then it is used, and not cached. Verified copies are cached in
    ``folder``; where there is neither a file nor a copy, the origins are asked.
    """
    check_name(name)
    path = folder / f"{name}.safetensors"
    if weights_file is not None:
        return _use_file(name, path, weights_file)
    return _read_cached(name, path) or _obtain(name, path, origins_of(name) if origins is None else origins)


def file_owner(names: Sequence[str], file: Path) -> str:
    """Which of these backbones the user's file belongs to: the only one, or the one that it fits."""
    problems = []
    for name in names if len(names) > 1 else ():
        try:
            check_fit(name, _read_file(name, file), str(file))
            return name
        except InputError as error:
            problems.append(error.message)
    if problems:
        raise InputError("\n".join(problems))
    return names[0]


def _read_file(name: str, file: Path) -> dict[str, Tensor]:
    tensors = read_tensors(file)
    return dinov2.authors_names(tensors) if name == dinov2.NAME else tensors


def _use_file(name: str, path: Path, file: Path) -> dict[str, Tensor]:
    tensors = _read_file(name, file)
    check_fit(name, tensors, str(file))
    found = digest(tensors)
    if name not in KNOWN or found != KNOWN[name].digest:
        logger.info("%s: digest %s is not the known one of %s; used as your own weights", file, found, name)
    elif _read_cached(name, path) is None:
        with replacing(path) as partial:
            _write(partial, name, tensors, str(file))
    return tensors


def _obtain(name: str, path: Path, origins: Origins) -> dict[str, Tensor]:
    """The weights from the first origin that has them, cached as ``path``."""
    answers = ["a file of yours: none is named"]
    with replacing(path) as partial, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        partial.touch()  # a folder that cannot be written shows before any download
        for title, fetch in origins.items():
            logger.info("Weights of %s: trying %s", name, title)
            try:
                tensors, source = fetch(name, Path(scratch))
            except InputError as error:
                answers.append(f"{title}: {error.message}")
                logger.info(answers[-1])
                continue
            if name in KNOWN and (found := digest(tensors)) != KNOWN[name].digest:
                expected = f"expected for {name} is {KNOWN[name].digest}"
                raise InputError(f"{source}: the tensors have digest {found}, {expected}")
            check_fit(name, tensors, source)
            _write(partial, name, tensors, source)
            logger.info("Weights of %s from %s cached as %s", name, source, path)
            return tensors
        tried = "".join(f"\n  {number}. {answer}" for number, answer in enumerate(answers, 1))
        raise InputError(
            f"No origin has the weights of {name}:{tried}\nGive a file (.pth or .safetensors) with the parameter "
            "features.weights_file in conf/base/parameters_features.yml."
        )


def _write(file: Path, name: str, tensors: dict[str, Tensor], source: str) -> None:
    file.write_bytes(save(tensors, {"name": name, "digest": digest(tensors), "origin": source}))


def _read_cached(name: str, path: Path) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            expected = KNOWN[name].digest if name in KNOWN else (file.metadata() or {}).get("digest")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        logger.warning("The cached copy %s cannot be read (%s) and is obtained again", path, error)
        return None
    if (found := digest(tensors)) == expected:
        return tensors
    logger.warning("The cached copy %s has digest %s instead of %s and is obtained again", path, found, expected)
    return None


def check_fit(name: str, tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors whose names or shapes are not those of the network."""
    try:
        bare_network(name).load_state_dict(tensors, assign=True)
    except (RuntimeError, ValueError) as error:  # the latter of MNASNet, which asks for the version of the file
        first, *problems = str(error).splitlines()
        reason = shorten(" ".join(problems) or first, PROBLEMS)
        raise InputError(f"{source} does not fit {name}: {reason}") from error
