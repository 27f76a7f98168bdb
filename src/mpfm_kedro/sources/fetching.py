"""Raw images of a dataset in its folder below the data root, so that they can be tracked."""

from __future__ import annotations

import shutil
from pathlib import Path

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import get_source
from mpfm_kedro.sources.layout import new_folder


def fetch(name: str, root: Path) -> Path:
    """The folder ``<root>/<name>`` with the images: kept as it is, drawn, or copied from the package that ships them.

    Raises:
        InputError: The images are nowhere, are not in that folder, or it cannot be written.
    """
    source = get_source(name)
    found, folder = source.locate(root), root / source.name
    if not folder.is_dir():
        if found == root:
            raise InputError(f"The images of '{name}' are in {root} itself; move them to {folder}")
        with new_folder(folder, f"copy {found} to") as partial:
            shutil.copytree(found, partial)
    return folder
