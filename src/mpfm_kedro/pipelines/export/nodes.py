"""A production model as one ONNX file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.model import Model

IMAGES = 64  # that torch and the exported network are compared on


def export_network(images: Any, model: Model, samples: pd.DataFrame, loader: ImageLoader, folder: Path) -> str:
    """Write the file, unless a decision about an image would be another one; returns what to say.

    Args:
        images: a path of images to compare on; None for those that the model has learned from.
        model: the production model.
        samples: what it has learned from.
        loader: of these.
        folder: takes the file.
    """
    from mpfm_kedro.inspection.export import NETWORK, describe, export_model  # with torch, which is slow to import

    files = None if images is None else read_files(images, model.card["pixel_range"], loader.max_pixels)
    chosen = read_samples(samples, loader) if files is None else files
    parity = export_model(model, chosen, folder)
    return f"{folder / NETWORK} is written. {describe(parity)}\nThresholds are in card.json beside it."


def read_samples(samples: pd.DataFrame, loader: ImageLoader) -> Iterator[tuple[str, Image.Image]]:
    """As many normals as anomalies from all over the table, those of one size together."""
    from mpfm_kedro.inspection.production import evenly  # with torch, which is slow to import

    halves = [own.iloc[evenly(range(len(own)), IMAGES // 2)] for _, own in samples.groupby("label")]
    chosen = pd.concat(halves).sort_values(["height", "width"], kind="stable")
    for row in chosen.itertuples():
        yield str(row.sample_id), loader.read(str(row.path), str(row.crop), str(row.pixel_range))


def read_files(images: str, pixel_range: str, max_pixels: int) -> Iterator[tuple[str, Image.Image]]:
    """Images from all over those that a path names."""
    from mpfm_kedro.inspection.finding import find_images
    from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import
    from mpfm_kedro.inspection.production import evenly

    for file in evenly(find_images(images), IMAGES):
        yield str(file), read_image(file, pixel_range, max_pixels / 1e6)
