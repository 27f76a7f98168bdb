"""Versions of the production model: which are kept, and which of them is meant."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.atomic import first_line
from mpfm_kedro.errors import InputError
from mpfm_kedro.protocol.runs import PRODUCTION

logger = logging.getLogger(__name__)
COLUMNS = ["dataset", "version", "normals", "anomalies", "learned", "revision", "data", "weights"]
DIGITS = 12


def list_versions(root: Path) -> pd.DataFrame:
    """One row per version of a production model below ``root``, newest last: what it was made from."""
    rows = [describe_version(file) for file in sorted(root.glob(f"*/{PRODUCTION}/model/*/model/card.json"))]
    return pd.DataFrame([row for row in rows if row], columns=COLUMNS)


def describe_version(file: Path) -> dict[str, Any] | None:
    """What the card of a version says; None where it is damaged."""
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        return {
            "dataset": file.parents[4].name,
            "version": file.parents[1].name,
            "normals": card["data"]["normals"],
            "anomalies": card["data"]["anomalies"],
            "learned": len(card["learned"]),
            "revision": card["revision"][:DIGITS],
            "data": card["data"]["digest"][:DIGITS],
            "weights": ", ".join(backbone["weights_digest"][:DIGITS] for backbone in card["backbones"]),
        }
    except (OSError, KeyError, TypeError, ValueError) as error:
        logger.warning("%s is damaged (%s)", file, first_line(error))
        return None


def find_version(root: Path, dataset: str, prefix: str) -> str:
    """The one version whose name begins with ``prefix``."""
    known = sorted(path.name for path in (root / dataset / PRODUCTION / "model").glob("*"))
    matching = [name for name in known if name.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    problem = "is not unique" if matching else "does not exist"
    names = ", ".join(matching or known) or "none"
    raise InputError(f"Version '{prefix}' of the production model of {dataset} {problem}; there are: {names}")
