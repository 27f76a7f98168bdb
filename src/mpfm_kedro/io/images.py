"""Pixels: the loader that nodes are handed, and the Kedro dataset that hands it out."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.io import AbstractDataset
from kedro_datasets._typing import ImagePreview
from PIL import Image, ImageOps, UnidentifiedImageError

from mpfm_kedro.io.atomic import replacing
from mpfm_kedro.progress import progress
from mpfm_kedro.sources import get_source
from mpfm_kedro.sources.samples import CHECKED, parse_crop

FILE = ["folder", "path", "crop", "size", "modified"]
KINDS: dict[str, Any] = dict.fromkeys(CHECKED, "str") | {"width": "int64", "height": "int64"}
FILES_IN_ONE_PIECE = 64
DHASH_SIDE = 16
THUMBNAIL = 160
PREVIEW_ROWS, PREVIEW_COLUMNS = 3, 4
ARRAY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class UnusableImageError(ValueError):
    """An image that cannot be decoded, or should not be."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Three channels of eight bits, whatever the file holds.

    Sixteen bits are scaled by their full range, the same for every image; floating point is clipped to 0..255;
    transparent pixels become black.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
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


def dhash(image: Image.Image) -> str:
    """Difference hash: whether each of 16×16 areas is darker than its right neighbour, 256 bits in hex.

    Copies that were scaled or compressed again differ in few bits. An image of one colour has no such bits, and
    would be like every other one: it gets "".
    """
    grey = image if image.mode == "L" else to_rgb(image).convert("L")
    darkest, lightest = grey.getextrema()
    if darkest == lightest:
        return ""
    areas = np.asarray(grey.resize((DHASH_SIDE + 1, DHASH_SIDE), Image.Resampling.BOX))
    return np.packbits(areas[:, 1:] > areas[:, :-1]).tobytes().hex()


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

    def thumbnail(self, path: str, crop: str, content_hash: str) -> Image.Image:
        """A small copy of an image or crop; it is kept beside the memory, so that the image is read once."""
        kept = self.memory.with_name("thumbnails") / f"{content_hash}{crop and '-'}{crop}.png"
        if not kept.is_file():
            small = self.read(path, crop)
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            with replacing(kept) as partial:
                small.save(partial, format="png")
        with Image.open(kept) as image:
            return image.convert("RGB")

    def examine(self, path: str, crop: str = "") -> dict[str, Any]:
        """Content hash, size, mode, perceptual hash of the crop and, where the image is of no use, the problem."""
        return self.examine_crops(path, [crop])[0]

    def examine_crops(self, path: str, crops: Sequence[str]) -> list[dict[str, Any]]:
        """The same for several crops of one file, which is read once."""
        result: dict[str, Any] = dict.fromkeys(CHECKED, "") | {"width": 0, "height": 0}
        try:
            content = (self.folder / path).read_bytes()
            result["content_hash"] = hashlib.sha256(content).hexdigest()
            image = self._open(path, content)
            result |= {"width": image.width, "height": image.height, "mode": image.mode}
            image.load()
            boxes = [parse_crop(crop) for crop in crops]
            return [result | {"dhash": dhash(image.crop(box) if box else image)} for box in boxes]
        except (OSError, SyntaxError, ValueError, TypeError) as error:
            return [result | {"problem": f"{type(error).__name__}: {error}"} for _ in crops]

    def examine_all(self, paths: list[str], processes: int, crops: list[str] | None = None) -> pd.DataFrame:
        """Examine files, or crops of them, in several processes; the rows are in the order of ``paths``.

        A file that was usable before and still has its size and date is not read again.
        """
        files = pd.DataFrame({"folder": str(self.folder), "path": paths, "crop": crops or [""] * len(paths)})
        stats = {path: self._stat(path) for path in dict.fromkeys(paths)}
        files[["size", "modified"]] = np.array([stats[path] for path in paths], dtype=np.int64).reshape(-1, 2)
        known = self._known_files()
        table = files.merge(known, on=FILE, how="left")
        new = table["content_hash"].isna().to_numpy()
        if new.any():
            table.loc[new, CHECKED] = self._examine_files(table[new], processes)[CHECKED].to_numpy()
            table = table.astype(KINDS)
            rest = known[(known["folder"] != str(self.folder)) | ~known["path"].isin(set(paths))]
            usable = table[table["problem"] == ""]
            with replacing(self.memory) as partial:
                (pd.concat([rest, usable], ignore_index=True) if len(rest) else usable).to_parquet(partial)
        return table.set_index("path")[CHECKED].astype(KINDS)

    def _known_files(self) -> pd.DataFrame:
        """What earlier runs learned of usable files, under today's limit of pixels."""
        known = pd.DataFrame(columns=FILE + CHECKED).astype({"size": int, "modified": int})
        if self.memory.is_file():
            stored = pd.read_parquet(self.memory)
            if set(known.columns) <= set(stored.columns):  # else of an older version: read again
                known = stored[stored["width"] * stored["height"] <= self.max_pixels]
        return known

    def _examine_files(self, files: pd.DataFrame, processes: int) -> pd.DataFrame:
        """Rows in the order of ``files``; each file is read once for all its crops."""
        crops_of = {str(path): crops.tolist() for path, crops in files.groupby("path", sort=False)["crop"]}
        tasks = list(crops_of.items())
        pieces = [tasks[i : i + FILES_IN_ONE_PIECE] for i in range(0, len(tasks), FILES_IN_ONE_PIECE)]
        found: dict[tuple[str, str], dict[str, Any]] = {}
        with progress("Checking images", len(tasks), "images") as bar:
            for piece, rows in zip(pieces, _map_pieces(self._examine_piece, pieces, processes), strict=True):
                for (path, crops), results in zip(piece, rows, strict=True):
                    found.update(((path, crop), result) for crop, result in zip(crops, results, strict=True))
                bar.advance(len(piece))
        keys = zip(files["path"], files["crop"], strict=True)
        return pd.DataFrame([found[key] for key in keys], columns=CHECKED)

    def _examine_piece(self, tasks: list[tuple[str, list[str]]]) -> list[list[dict[str, Any]]]:
        return [self.examine_crops(path, crops) for path, crops in tasks]

    def _stat(self, path: str) -> tuple[int, int]:
        """Size and date of a file, -1 for a missing one."""
        try:
            status = (self.folder / path).stat()
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def _open(self, path: str, content: bytes) -> Image.Image:
        if path.lower().endswith(".npy"):
            return self._open_array(content)
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(io.BytesIO(content))
        except UnidentifiedImageError as error:
            raise UnusableImageError("not an image that can be identified") from error
        finally:
            Image.MAX_IMAGE_PIXELS = limit
        self._refuse_large(image.width, image.height)
        return image

    def _open_array(self, content: bytes) -> Image.Image:
        """An array (height, width) or (height, width, channels), of which at most three are used."""
        file = io.BytesIO(content)
        try:
            read_header = ARRAY_HEADERS[np.lib.format.read_magic(file)]
            shape = read_header(file)[0]
        except Exception as error:  # numpy's parser lets any error through
            raise UnusableImageError("not an array that can be identified") from error
        if len(shape) not in (2, 3) or min(shape) < 1:
            raise UnusableImageError(f"an array of shape {shape}; an image is (height, width) or (height, width, n)")
        self._refuse_large(shape[1], shape[0])
        file.seek(0)
        array = np.clip(np.load(file, allow_pickle=False), 0, 255).astype(np.uint8)
        if array.ndim == 3:
            array = array[:, :, :3] if array.shape[2] >= 3 else array[:, :, 0]
        return Image.fromarray(array)

    def _refuse_large(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise UnusableImageError(
                f"{width} x {height} pixels, more than ingestion.max_megapixels = {self.max_pixels / 1e6:g}"
            )


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

    def preview(self) -> ImagePreview:
        """A few small copies that the audit kept, side by side, for kedro-viz."""
        kept = sorted(self._memory.with_name("thumbnails").glob("*.png"))
        sheet = Image.new("RGB", (PREVIEW_COLUMNS * THUMBNAIL, PREVIEW_ROWS * THUMBNAIL), "white")
        for i, file in enumerate(kept[: PREVIEW_ROWS * PREVIEW_COLUMNS]):
            row, column = divmod(i, PREVIEW_COLUMNS)
            with Image.open(file) as image:
                shown = ImageOps.contain(image, (THUMBNAIL - 4, THUMBNAIL - 4))
            sheet.paste(shown, (column * THUMBNAIL, row * THUMBNAIL))
        content = io.BytesIO()
        sheet.save(content, format="png")
        return ImagePreview(base64.b64encode(content.getvalue()).decode())

    def _describe(self) -> dict[str, Any]:
        return {"dataset": self._dataset, "data_root": str(self._root)}

    def _exists(self) -> bool:
        return get_source(self._dataset).locate(self._root).is_dir()
