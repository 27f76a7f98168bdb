"""A production model as one ONNX file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import Model

IMAGES = 64  # that torch and the exported network are compared on


def export_network(images: Any, model: Model, samples: pd.DataFrame, loader: ImageLoader, folder: Path) -> str:
    """Write the network, unless a decision about an image would differ; returns the summary.

    Compared are the images of a path, or else the samples that the model has learned from.
    """
    from mpfm_kedro.inspection.export import NETWORK, describe, export_model  # with torch, which is slow to import

    compared = read_samples(samples, loader) if images is None else read_files(images, model, loader)
    parity = export_model(model, compared, folder)
    return f"{folder / NETWORK} is written. {describe(parity)}\nThresholds are in card.json beside it."


def read_samples(samples: pd.DataFrame, loader: ImageLoader) -> Iterator[tuple[str, Image.Image]]:
    """As many normals as anomalies, spread over the table."""
    from mpfm_kedro.inspection.production import spread  # with torch, which is slow to import

    for _, group in samples.groupby("label"):
        for index in spread(range(len(group)), IMAGES // 2):
            sample_id, path, crop, pixel_range = group[["sample_id", "path", "crop", "pixel_range"]].iloc[index]
            yield sample_id, loader.read(path, crop, pixel_range)


def read_files(images: str, model: Model, loader: ImageLoader) -> Iterator[tuple[str, Image.Image]]:
    """Images spread over those that a path names."""
    from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import
    from mpfm_kedro.inspection.production import spread

    for file in spread(find_images(images), IMAGES):
        yield str(file), read_image(file, model.card["pixel_range"], loader.max_pixels / 1e6)
