"""Extraction of features, here or by shards on a Dask cluster: the same batches, so the same numbers."""

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mpfm_kedro.atomic import format_bytes
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.features import BackboneWeights, Features
from mpfm_kedro.backbones.networks import build_backbone
from mpfm_kedro.backbones.store import (
    KEY,
    FeatureSpec,
    FeatureStore,
    Rows,
    extraction_libraries,
    extraction_version,
    row_keys,
)
from mpfm_kedro.compute import completed, torch_device
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.proportions import pad_to_square
from mpfm_kedro.images.views import apply_view
from mpfm_kedro.parameters import ComputeParameters, FeatureParameters
from mpfm_kedro.progress import progress
from mpfm_kedro.workers import dask_workers

logger = logging.getLogger(__name__)
REPORTED_SECONDS = 0.5  # after which the system has told of a killed process
BATCHES = 8  # of one shard: an interruption loses no more, and building the backbone takes little of its time


@dataclass(frozen=True)
class ViewImages(Dataset):
    """Decoded, augmented and resized images of a table of views (path, crop, pixel_range, view, content_hash).

    ``read(path, crop, pixel_range)`` gives an image or crop as RGB.
    """

    views: pd.DataFrame
    read: Callable[[str, str, str], Image.Image]
    image_size: int
    keep_proportions: bool = False

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, i: int) -> tuple[str, Tensor]:
        """The key of the view and the image (3, S, S) of bytes."""
        row = self.views.iloc[i]
        image = self.read(row["path"], row["crop"], row.get("pixel_range", ""))
        image = apply_view(image, row["view"], row["content_hash"], row["crop"])
        return row_keys(row), to_pixels(image, self.image_size, self.keep_proportions)


def to_pixels(image: Image.Image, image_size: int, keep_proportions: bool = False) -> Tensor:
    """An RGB image as the backbone reads it: resized to S × S pixels, (3, S, S) of bytes."""
    square = pad_to_square(image) if keep_proportions else image
    resized = square.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def extract(
    backbone: Backbone, dataset: ViewImages, parameters: FeatureParameters, device: torch.device
) -> Iterator[Rows]:
    """The features of all images, batch by batch."""
    backbone.to(device)
    if parameters.compile:
        backbone.compile(options={"freezing": True})
    loader = DataLoader(
        dataset,
        batch_size=backbone.images_per_batch(dataset.image_size, parameters.batch_size),
        num_workers=parameters.workers,
        prefetch_factor=4 if parameters.workers else None,
        pin_memory=device.type == "cuda",
    )
    for keys, images in loader:
        with torch.inference_mode(), autocast(device, parameters.precision):
            pooled, maps = backbone.features(images.to(device, non_blocking=True), parameters.statistics)
        yield Rows(list(keys), pooled.cpu().numpy(), maps.cpu().numpy())


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which the network computes; statistics are always fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


@contextmanager
def named_loss_of_readers() -> Iterator[None]:
    """One clear error where a process that reads images is killed.

    Torch raises its own wherever this process is at that moment, also while rows are written, or a connection breaks.
    """
    try:
        yield
    except (RuntimeError, ConnectionResetError, EOFError) as error:
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
        return replace(first, others=tuple(others))

    @named_loss_of_readers()
    def _extract(self, weights: BackboneWeights, store: FeatureStore) -> Features:
        backbone = self.build(weights)
        spec = self.specification(backbone, weights)
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
                here = self.compute.dask_scheduler is None
                with progress("Features", len(new), "images") as bar:
                    for rows in work.here(backbone) if here else work.on_dask(backbone, weights):
                        writer.append(*rows)
                        bar.update(len(rows.keys))
        return Features.locate(self.views, folder)

    def build(self, weights: BackboneWeights) -> Backbone:
        """The backbone of these weights."""
        return build_backbone(weights.name, weights.tensors, self.parameters.layers, self.parameters.map_layers)

    def specification(self, backbone: Backbone, weights: BackboneWeights) -> FeatureSpec:
        """What decides the features; their shapes are those of a black image of the nearest size that is accepted."""
        image_size = backbone.accepted_size(self.image_size)
        with torch.inference_mode():
            black = torch.zeros(1, 3, image_size, image_size, dtype=torch.uint8)
            pooled, maps = backbone.features(black, self.parameters.statistics)
        return FeatureSpec(
            backbone=weights.name,
            weights_digest=weights.digest,
            image_size=image_size,
            layers=backbone.layers,
            map_layers=backbone.map_layers,
            statistics=tuple(self.parameters.statistics),
            pooled_size=pooled.shape[1],
            map_shape=tuple(maps.shape[1:]),  # type: ignore[arg-type]
            precision=self.parameters.precision,
            version=extraction_version(
                f"{type(backbone).__name__} {backbone.version}", self.parameters.keep_proportions
            ),
            libraries=extraction_libraries(backbone.libraries),
        )

    @property
    def image_size(self) -> int:
        """The side of all views in pixels."""
        return int(self.views["image_size"].iloc[0])

    def here(self, backbone: Backbone) -> Iterator[Rows]:
        """The rows of the views, batch by batch."""
        dataset = ViewImages(self.views, self.images.read, self.image_size, self.parameters.keep_proportions)
        return extract(backbone, dataset, self.parameters, torch_device(self.compute.device))

    def on_dask(self, backbone: Backbone, weights: BackboneWeights) -> Iterator[Rows]:
        """The rows of the views, shard by shard as Dask workers have extracted them."""
        size = BATCHES * backbone.images_per_batch(self.image_size, self.parameters.batch_size)
        alone = self.parameters.model_copy(update={"workers": 0})  # a Dask worker may have no processes of its own
        starts = range(0, len(self.views), size)
        shards = [replace(self, views=self.views.iloc[start : start + size], parameters=alone) for start in starts]
        with dask_workers(extract_shard, "Features", self.compute, weights) as workers:
            for _, rows in completed(workers, shards, "Features"):
                yield rows


def extract_shard(shard: Extraction, weights: BackboneWeights) -> Rows:
    """The rows of one shard; the work of a worker."""
    return Rows.join(list(shard.here(shard.build(weights))))
