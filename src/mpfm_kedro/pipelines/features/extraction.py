"""Extraction of features, here or by shards on a Dask cluster: the same batches, so the same numbers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mpfm_kedro.atomic import format_bytes
from mpfm_kedro.backbones.features import Features
from mpfm_kedro.backbones.store import (
    KEY,
    FeatureSpec,
    FeatureStore,
    extraction_libraries,
    extraction_version,
    row_keys,
)
from mpfm_kedro.compute import completed, torch_device
from mpfm_kedro.datasets.weights import BackboneWeights
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters
from mpfm_kedro.progress import progress
from mpfm_kedro.workers import dask_workers

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from mpfm_kedro.backbones.extraction import Backbone

logger = logging.getLogger(__name__)
Rows = tuple[list[str], np.ndarray, np.ndarray]  # keys, pooled statistics, maps
REPORTED_SECONDS = 0.5  # after which the system has told of a killed process
BATCHES = 8  # of one shard: an interruption loses no more, and building the backbone takes little of its time


@contextmanager
def named_loss_of_readers() -> Iterator[None]:
    """One clear error where a process that reads images is killed.

    Torch raises its own wherever this process is at that moment, also while rows are written, or a connection breaks.
    """
    try:
        yield
    except (RuntimeError, ConnectionResetError) as error:
        if isinstance(error, RuntimeError) and not re.search("DataLoader worker .* (killed|exited)", str(error)):
            raise
        with suppress(RuntimeError):  # torch may report the death once more, wherever this process is then
            time.sleep(REPORTED_SECONDS)
        raise InputError(
            "A worker process was killed while it read images, most likely for lack of memory: lower features.workers"
        ) from error


@dataclass(frozen=True)
class Extraction:
    """What is to be extracted, by which backbones; the dataset that it is saved to does it, in its store."""

    views: pd.DataFrame
    images: ImageLoader
    weights: Sequence[BackboneWeights]
    parameters: FeatureParameters
    compute: ComputeParameters

    def __str__(self) -> str:
        return f"features of {len(self.views)} views from {self.views['path'].iloc[0]}"

    def run(self, store: FeatureStore) -> Features:
        """Compute the rows that the stores do not have yet, and locate those of all views, in each backbone."""
        first, *others = [self._extract(weights, store) for weights in self.weights]
        return replace(first, beside=tuple(others))

    @named_loss_of_readers()
    def _extract(self, weights: BackboneWeights, store: FeatureStore) -> Features:
        backbone = _build(weights, self.parameters)
        spec = specification(backbone, weights, self.image_size, self.parameters)
        folder, keys = store.open(spec), row_keys(self.views)
        if folder.missing(keys):
            with folder.writing() as writer:
                # asked again: another process may have written some while this one waited
                new = self.views[keys.isin(folder.missing(keys))].drop_duplicates(KEY)
                if new.empty:
                    return Features.locate(self.views, folder)
                need = format_bytes(store.check_room(spec, len(new)))
                message = "Features: %d of %d views are new to %s at %d px, %s in %s"
                logger.info(message, len(new), keys.nunique(), spec.backbone, spec.image_size, need, folder.folder)
                work = replace(self, views=new.assign(image_size=spec.image_size), weights=())
                on_dask = self.compute.dask_scheduler is not None
                rows = work.rows_from_dask(backbone, weights) if on_dask else work.rows(backbone)
                with progress("Features", len(new), "images") as bar:
                    for names, pooled, maps in rows:
                        writer.append(names, pooled, maps)
                        bar.advance(len(names))
        return Features.locate(self.views, folder)

    @property
    def image_size(self) -> int:
        """The side of all views in pixels."""
        return int(self.views["image_size"].iloc[0])

    def rows(self, backbone: Backbone) -> Iterator[Rows]:
        """The rows of the views, batch by batch."""
        from mpfm_kedro.backbones.extraction import ViewImages, extract

        names = row_keys(self.views).to_numpy()
        dataset = ViewImages(self.views, self.images.read, self.image_size)
        for batch in extract(backbone, dataset, self.parameters, torch_device(self.compute.device)):
            yield names[batch.positions.numpy()].tolist(), batch.pooled.numpy(), batch.maps.numpy()

    def rows_from_dask(self, backbone: Backbone, weights: BackboneWeights) -> Iterator[Rows]:
        """The rows of the views, shard by shard as Dask workers have extracted them."""
        from mpfm_kedro.backbones.extraction import images_per_batch

        size = BATCHES * images_per_batch(backbone, self.image_size, self.parameters.batch_size)
        alone = self.parameters.model_copy(update={"workers": 0})  # a Dask worker may have no processes of its own
        starts = range(0, len(self.views), size)
        shards = [replace(self, views=self.views.iloc[start : start + size], parameters=alone) for start in starts]
        with dask_workers(extract_shard, "Features", self.compute, weights) as workers:
            for _, rows in completed(workers, shards, "Features"):
                yield rows


def extract_shard(shard: Extraction, weights: BackboneWeights) -> Rows:
    """The rows of one shard; the work of a worker."""
    keys, pooled, maps = zip(*shard.rows(_build(weights, shard.parameters)), strict=True)
    return [key for some in keys for key in some], np.concatenate(pooled), np.concatenate(maps)


def _build(weights: BackboneWeights, parameters: FeatureParameters) -> Backbone:
    from mpfm_kedro.backbones.building import build_backbone

    return build_backbone(weights.name, weights.tensors, parameters.layers, parameters.map_layers)


def specification(
    backbone: Backbone, weights: BackboneWeights, image_size: int, parameters: FeatureParameters
) -> FeatureSpec:
    """What decides the features; their shapes are those of a black image.

    The image size is the nearest one that the backbone accepts.
    """
    import torch

    from mpfm_kedro.backbones.building import accepted_size

    image_size = accepted_size(backbone, image_size)
    with torch.inference_mode():
        black = torch.zeros(1, 3, image_size, image_size, dtype=torch.uint8)
        pooled, maps = backbone.features(black, parameters.statistics)
    return FeatureSpec(
        backbone=weights.name,
        weights_digest=weights.digest,
        image_size=image_size,
        layers=backbone.layers,
        map_layers=backbone.map_layers,
        statistics=tuple(parameters.statistics),
        pooled_size=pooled.shape[1],
        map_shape=tuple(maps.shape[1:]),  # type: ignore[arg-type]
        precision=parameters.precision,
        version=extraction_version(f"{type(backbone).__name__} {backbone.version}"),
        libraries=extraction_libraries(backbone.libraries),
    )
