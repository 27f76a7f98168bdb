"""The feature store: what the frozen backbone made of each image and view, computed once.

A store is a folder named by the digest of what its numbers depend on (``FeatureSpec``). Its rows are keyed by content
hash, crop and view.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.store_folder import KEYS, StoreFolder, alone
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import free_bytes, in_units
from mpfm_kedro.images import decoding, views
from mpfm_kedro.provenance import library_versions

EXTRACTION_LIBRARIES = ("numpy", "pillow", "torch", "torchvision")
KEY = ["content_hash", "crop", "view"]


def extraction_version(backbone: str = "Backbone 1") -> str:
    """Versions of what decodes and augments images, and of the backbone's class."""
    return f"decoding {decoding.VERSION}, views {views.VERSION}, {backbone}"


def extraction_libraries(more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The libraries that decide the numbers, with their versions; ``more`` are those of one backbone alone."""
    versions = library_versions()
    own = [f"{name} {versions[name]}" for name in EXTRACTION_LIBRARIES]
    return (*own, *(f"{name} {version(name)}" for name in more))


@dataclass(frozen=True)
class FeatureSpec:
    """Everything besides the pixels that decides the numbers in a store, and their shapes.

    Device, batch and threads are no part of it: they decide the rounding only.
    """

    backbone: str
    weights_digest: str
    image_size: int
    layers: tuple[str, ...]
    map_layers: tuple[str, ...]
    statistics: tuple[str, ...]
    pooled_size: int
    map_shape: tuple[int, int, int]
    precision: str = "fp32"
    version: str = field(default_factory=extraction_version)
    libraries: tuple[str, ...] = field(default_factory=extraction_libraries)

    @property
    def digest(self) -> str:
        """Names the store."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def row_bytes(self) -> int:
        """Disk that one row takes: pooled statistics in fp32, the map in fp16."""
        return 4 * self.pooled_size + 2 * int(np.prod(self.map_shape))


def row_keys(views: pd.DataFrame) -> pd.Series:
    """The key of each view's row."""
    return views["content_hash"] + "|" + views["crop"] + "|" + views["view"]


@dataclass(frozen=True)
class FeatureStore:
    """All stores of the project, one folder each."""

    root: Path

    def open(self, spec: FeatureSpec) -> StoreFolder:
        """The store for this specification, which need not exist yet."""
        return StoreFolder(self.root / spec.digest, spec)

    def check_room(self, spec: FeatureSpec, rows: int) -> int:
        """Bytes that ``rows`` more rows take; too little free disk is an error before any work."""
        self.root.mkdir(parents=True, exist_ok=True)
        need, free = rows * spec.row_bytes, free_bytes(self.root)
        if need > free:
            raise InputError(f"{self.root} needs {in_units(need)} for features, {in_units(free)} are free")
        return need

    def overview(self) -> pd.DataFrame:
        """One row per store: what it holds and how much disk it takes."""
        rows = []
        for file in sorted(self.root.glob("*/store.json")):
            try:
                spec = json.loads(file.read_text())
                found = {"backbone": spec["backbone"], "image_size": spec["image_size"]}
            except (ValueError, KeyError, TypeError):  # damaged; the next extraction writes it again
                found = {"backbone": "unknown", "image_size": 0}
            size = sum(part.stat().st_size for part in file.parent.iterdir())
            keys = file.parent / KEYS
            lines = keys.read_bytes().count(b"\n") if keys.is_file() else 0
            rows.append({"store": file.parent.name} | found | {"rows": lines, "megabytes": round(size / 1e6)})
        return pd.DataFrame(rows, columns=["store", "backbone", "image_size", "rows", "megabytes"])

    def free(self, name: str) -> None:
        """Delete one store."""
        if name not in set(self.overview()["store"]):
            raise InputError(
                f"No feature store '{name}' in {self.root}; there are: {', '.join(self.overview()['store'])}"
            )
        with alone(self.root / name):
            shutil.rmtree(self.root / name)
