"""Versions of the production model: which are kept, which is the present one, and how to restore another."""

import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.atomic import first_line
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.model import CARD, model_digest
from mpfm_kedro.protocol.runs import PRODUCTION

logger = logging.getLogger(__name__)
COLUMNS = ["present", "dataset", "version", "normals", "anomalies", "learned", "revision", "data", "weights"]
DIGITS = 12


def list_versions(root: Path, models: Path) -> pd.DataFrame:
    """One row per version of a production model below ``root``, newest last: what it was made from.

    Those with the numbers of the present model, which is below ``models``, have a star.
    """
    present = {_read(file)[0] for file in models.glob(f"*/{PRODUCTION}/model/{CARD}")} - {""}
    found = map(_read, sorted(root.glob(f"*/{PRODUCTION}/model/*/model/{CARD}")))
    rows = [row | {"present": "*" if digest in present else ""} for digest, row in found if digest]
    return pd.DataFrame(rows, columns=COLUMNS)


def versions_by_digest(folder: Path) -> dict[str, str]:
    """The first version with the numbers of a model, by their digest, oldest first."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob(f"*/model/{CARD}")):
        found.setdefault(_read(file)[0], file.parents[1].name)
    return {digest: version for digest, version in found.items() if digest}


def restore_command(dataset: str, version: str, output_root: str | Path) -> list[str]:
    """The command that restores a version."""
    return ["kedro", "versions", "use", dataset, version, "--output-root", str(output_root)]


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    """The digest of a model and what its card says; an empty digest where it is damaged."""
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        return model_digest(card), {
            "dataset": file.parents[4].name,
            "version": file.parents[1].name,
            "normals": card["data"]["normals"],
            "anomalies": card["data"]["anomalies"],
            "learned": len(card["learned"]),
            "revision": card["revision"][:DIGITS],
            "data": card["data"]["digest"][:DIGITS],
            "weights": ", ".join(backbone["weights_digest"][:DIGITS] for backbone in card["backbones"]),
        }
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        logger.warning("%s is damaged (%s)", file, first_line(error))
        return "", {}


def find_version(root: Path, dataset: str, prefix: str) -> str:
    """The one version whose name begins with ``prefix``."""
    known = sorted(path.name for path in root.glob(f"*/{PRODUCTION}/model/*") if path.parents[2].name == dataset)
    matching = [name for name in known if name.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    problem = "is not unique" if matching else "does not exist"
    names = ", ".join(matching or known) or "none"
    raise InputError(f"Version '{prefix}' of the production model of {dataset} {problem}; there are: {names}")
