"""Pixels: the loader that nodes are handed, and the Kedro dataset that hands it out."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.io import AbstractDataset
from PIL import Image, UnidentifiedImageError

from mpfm_kedro.io.atomic import replacing
from mpfm_kedro.progress import progress
from mpfm_kedro.sources import get_source
from mpfm_kedro.sources.samples import CHECKED, parse_crop

FILE = ["path", "size", "modified"]
FILES_IN_ONE_PIECE = 64


class UnusableImageError(ValueError):
    """An image that cannot be decoded, or should not be."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Three channels of eight bits, whatever the file holds.

    Sixteen bits are scaled by their full range, the same for every image; floating point is clipped to 0..255;
    transparent pixels become black.
    """
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        deep = np.asarray(image, dtype=np.float64) / 257
        return Image.fromarray(np.clip(deep, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(np.clip(np.asarray(image), 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    return image.convert("RGB")


@dataclass(frozen=True)
class ImageLoader:
    """Reads the images below ``folder``; larger ones than ``max_pixels`` are refused before decoding."""

    dataset: str
    folder: Path
    max_pixels: int
    memory: Path

    def read(self, path: str, crop: str = "") -> Image.Image:
        """One image, or a crop of it, as RGB."""
        image = to_rgb(self._open(path, (self.folder / path).read_bytes()))
        box = parse_crop(crop)
        return image.crop(box) if box else image

    def examine(self, path: str) -> dict[str, Any]:
        """Content hash, size, mode and, where the image is of no use, the problem."""
        result: dict[str, Any] = {"content_hash": "", "width": 0, "height": 0, "mode": "", "problem": ""}
        try:
            content = (self.folder / path).read_bytes()
            result["content_hash"] = hashlib.sha256(content).hexdigest()
            image = self._open(path, content)
            result |= {"width": image.width, "height": image.height, "mode": image.mode}
            image.load()
        except (OSError, SyntaxError, ValueError) as error:
            result["problem"] = f"{type(error).__name__}: {error}"
        return result

    def examine_all(self, paths: list[str], processes: int) -> pd.DataFrame:
        """Examine files in several processes; a file seen before with this size and date is not read again."""
        files = pd.DataFrame([self._stat(path) for path in paths], columns=FILE)
        known = pd.read_parquet(self.memory) if self.memory.is_file() else pd.DataFrame(columns=FILE + CHECKED)
        table = files.merge(known, on=FILE, how="left")
        new = table["content_hash"].isna().to_numpy()
        if new.any():
            table.loc[new, CHECKED] = self._examine_files(list(table["path"][new]), processes)[CHECKED].to_numpy()
            rest = known[~known["path"].isin(set(paths))]
            with replacing(self.memory) as partial:
                pd.concat([rest, table], ignore_index=True).astype({"width": int, "height": int}).to_parquet(partial)
        return table.set_index("path")[CHECKED].astype({"width": int, "height": int})

    def _examine_files(self, paths: list[str], processes: int) -> pd.DataFrame:
        pieces = [paths[i : i + FILES_IN_ONE_PIECE] for i in range(0, len(paths), FILES_IN_ONE_PIECE)]
        rows: list[dict[str, Any]] = []
        with progress("Checking images", len(paths), "images") as bar:
            for piece in _map_pieces(self._examine_piece, pieces, processes):
                rows += piece
                bar.advance(len(piece))
        return pd.DataFrame(rows, columns=CHECKED)

    def _examine_piece(self, paths: list[str]) -> list[dict[str, Any]]:
        return [self.examine(path) for path in paths]

    def _stat(self, path: str) -> tuple[str, int, int]:
        file = self.folder / path
        try:
            status = file.stat()
        except OSError:
            return path, -1, -1
        return path, status.st_size, status.st_mtime_ns

    def _open(self, path: str, content: bytes) -> Image.Image:
        if path.lower().endswith(".npy"):
            array = np.load(io.BytesIO(content), allow_pickle=False)
            if array.ndim == 3:
                array = array[:, :, :3]
            return Image.fromarray(np.clip(array, 0, 255).astype(np.uint8))
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(io.BytesIO(content))
        except UnidentifiedImageError as error:
            raise UnusableImageError("not an image that can be identified") from error
        finally:
            Image.MAX_IMAGE_PIXELS = limit
        if image.width * image.height > self.max_pixels:
            raise UnusableImageError(
                f"{image.width} x {image.height} pixels, more than ingestion.max_megapixels = {self.max_pixels / 1e6:g}"
            )
        return image


def _map_pieces(function: Callable[[Any], Any], pieces: list[Any], processes: int) -> Any:
    if processes < 2 or len(pieces) < 3:
        yield from map(function, pieces)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as pool:
        yield from pool.map(function, pieces)


class ImagesDataset(AbstractDataset[None, ImageLoader]):
    """Hands out the loader of a dataset's images; what an earlier run learned of the files is kept in ``filepath``."""

    def __init__(
        self,
        filepath: str,
        dataset: str,
        data_root: str,
        max_megapixels: float,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._memory = Path(filepath)
        self._dataset = dataset
        self._root = Path(data_root)
        self._max_pixels = int(max_megapixels * 1e6)
        self.metadata = metadata

    def load(self) -> ImageLoader:
        """The loader for the folder in which the source finds the files."""
        folder = get_source(self._dataset).locate(self._root)
        return ImageLoader(self._dataset, folder, self._max_pixels, self._memory)

    def save(self, data: None) -> None:
        """Raw images are never written."""
        raise NotImplementedError("raw images are not written")

    def _describe(self) -> dict[str, Any]:
        return {"dataset": self._dataset, "data_root": str(self._root)}

    def _exists(self) -> bool:
        return get_source(self._dataset).locate(self._root).is_dir()
