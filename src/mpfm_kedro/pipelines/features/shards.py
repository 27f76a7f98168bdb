"""Extraction here, or by shards on a Dask cluster: the same batches, so the same numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.store import row_keys
from mpfm_kedro.dask_engine import on_dask
from mpfm_kedro.datasets.weights import BackboneWeights
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parallel import succeeded, torch_device
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from mpfm_kedro.backbones.extraction import Backbone

Rows = tuple[list[str], np.ndarray, np.ndarray]  # keys, pooled statistics, maps
BATCHES = 8  # of one shard: an interruption loses no more, and building the backbone takes little of its time


@dataclass(frozen=True)
class Shard:
    """Some views, whole batches of them, and how they are extracted."""

    views: pd.DataFrame
    images: ImageLoader
    image_size: int
    device: str
    parameters: FeatureParameters

    def __str__(self) -> str:
        return f"features of {len(self.views)} views from {self.views['path'].iloc[0]}"


def extract_here(shard: Shard, backbone: Backbone) -> Iterator[Rows]:
    """The rows of views, batch by batch."""
    from mpfm_kedro.backbones.extraction import ViewImages, extract

    names = row_keys(shard.views).to_numpy()
    dataset = ViewImages(shard.views, shard.images.read, shard.image_size)
    for batch in extract(backbone, dataset, shard.parameters, torch_device(shard.device)):
        yield names[batch.positions.numpy()].tolist(), batch.pooled.numpy(), batch.maps.numpy()


@contextmanager
def named_loss_of_readers() -> Iterator[None]:
    """One clear error where a process that reads images is killed.

    Torch raises its own wherever this process is at that moment, also while rows are written.
    """
    try:
        yield
    except RuntimeError as error:
        if not re.search("DataLoader worker .* (killed|exited)", str(error)):
            raise
        raise InputError(
            "A worker process was killed while it read images, most likely for lack of memory: lower features.workers"
        ) from error


def extract_on_dask(
    whole: Shard, backbone: Backbone, weights: BackboneWeights, compute: ComputeParameters
) -> Iterator[Rows]:
    """The rows of views, shard by shard as Dask workers have extracted them."""
    from mpfm_kedro.backbones.extraction import images_per_batch

    size = BATCHES * images_per_batch(backbone, whole.image_size, whole.parameters.batch_size)
    alone = whole.parameters.model_copy(update={"workers": 0})  # a Dask worker may have no processes of its own
    shards = [
        Shard(whole.views.iloc[start : start + size], whole.images, whole.image_size, whole.device, alone)
        for start in range(0, len(whole.views), size)
    ]
    for _, rows in succeeded(on_dask(extract_shard, shards, "Features", compute, weights), shards, "Features"):
        yield rows


def extract_shard(shard: Shard, weights: BackboneWeights) -> Rows:
    """The rows of one shard; the work of a worker."""
    from mpfm_kedro.backbones.building import build_backbone

    parameters = shard.parameters
    backbone = build_backbone(weights.name, weights.tensors, parameters.layers, parameters.map_layers)
    keys, pooled, maps = zip(*extract_here(shard, backbone), strict=True)
    return [key for some in keys for key in some], np.concatenate(pooled), np.concatenate(maps)
