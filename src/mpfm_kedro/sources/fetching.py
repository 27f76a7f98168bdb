"""Raw images of a dataset in its folder below the data root, so that they can be tracked."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import get_source


def fetch(name: str, root: Path) -> Path:
    """The folder ``<root>/<name>`` with the images: kept as it is, drawn, or copied from the package that ships them.

    Raises:
        InputError: The images are nowhere, are not in that folder, or it cannot be written.
    """
    source = get_source(name)
    found, folder = source.locate(root), root / source.name
    if folder.is_dir():
        return folder
    if found == root:
        raise InputError(f"The images of '{name}' are in {root} itself; move them to {folder}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as scratch:
            partial = shutil.copytree(found, Path(scratch, name))
            partial.rename(folder)
    except OSError as error:
        raise InputError(f"Cannot copy {found} to {folder}: {error.strerror or error}") from error
    return folder
