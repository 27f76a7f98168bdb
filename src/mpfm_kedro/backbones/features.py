"""The features of one dataset, and the weights of the backbones that made them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.store import KEY, FeatureSpec, StoreFolder, row_keys
from mpfm_kedro.errors import InputError
from mpfm_kedro.provenance import key_digest


@dataclass(frozen=True, eq=False)
class BackboneWeights:
    """The weights of a backbone (tensors by name), with the digest that names them."""

    name: str
    digest: str
    tensors: Mapping[str, Any]


@dataclass(frozen=True)
class Features:
    """The features of one dataset: which row of a store belongs to which sample and view."""

    index: pd.DataFrame  # the views (sample_id, item, content_hash, crop, view) and their rows in the store
    store: StoreFolder  # of the first backbone, which every detector reads
    others: tuple[Self, ...] = ()  # features of the same views in the other backbones

    @classmethod
    def locate(cls, views: pd.DataFrame, store: StoreFolder) -> Self:
        """The features of these views (sample_id, item, content_hash, crop, view); all must be in the store."""
        rows = row_keys(views).map(store.row_of)
        if rows.isna().any():
            raise InputError(
                f"{store.folder} lacks {rows.isna().sum()} of {len(rows)} features; compute them with "
                "kedro run --pipelines=features"
            )
        return cls(views[["sample_id", "item", *KEY]].assign(row=rows.astype("int64")), store)

    @cached_property
    def _rows(self) -> dict[tuple[str, str], int]:
        return dict(zip(zip(self.index["sample_id"], self.index["view"], strict=True), self.index["row"], strict=True))

    def rows(self, sample_ids: Iterable[str], view: str = "original") -> np.ndarray:
        """Store rows of these samples in this view."""
        return np.array([self._rows[sample_id, view] for sample_id in sample_ids], dtype=np.int64)

    def items(self, sample_ids: Iterable[str]) -> np.ndarray:
        """A number for the item of each of these samples, by its first sample."""
        items = self.index.drop_duplicates("sample_id").set_index("sample_id")["item"]
        return items[list(sample_ids)].factorize()[0]

    def views(self, prefix: str) -> list[str]:
        """Names of the views that begin with ``prefix``."""
        return sorted(view for view in self.index["view"].unique() if view.startswith(prefix))

    @property
    def specs(self) -> tuple[FeatureSpec, ...]:
        """The specifications of all backbones."""
        return (self.store.spec, *(spec for other in self.others for spec in other.specs))

    @property
    def spec_digest(self) -> str:
        """Names all that decides the numbers besides the images: of one backbone its store, else all of them."""
        digests = [spec.digest for spec in self.specs]
        return digests[0] if len(digests) == 1 else key_digest(digests)

    @property
    def digest(self) -> str:
        """Names the content: store and keys, not row numbers, which depend on the order of work."""
        keys = self.index[["sample_id", *KEY]].sort_values(["sample_id", "view"])
        content = f"{self.spec_digest}\n{keys.to_csv(index=False)}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]
