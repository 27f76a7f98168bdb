"""The loader that nodes get their images from, and what it knows of each file."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from mpfm_kedro.atomic import load_table, replacing, save_table
from mpfm_kedro.compute import completed
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.decoding import Pixels, cut, decode, is_transparent, open_image, read_file, scale, to_rgb
from mpfm_kedro.progress import progress
from mpfm_kedro.sources.samples import CHECKED
from mpfm_kedro.workers import processes as worker_processes
from mpfm_kedro.workers import this_process

logger = logging.getLogger(__name__)
FILE = ["folder", "path", "crop", "size", "modified"]
NUMBERS = {"width": "int64", "height": "int64", "lowest": "float64", "highest": "float64"}
KINDS: dict[str, Any] = dict.fromkeys(CHECKED, "str") | NUMBERS
TRANSPARENT = "transparent pixels become black"
FILES_PER_TASK = 64
DHASH_SIDE = 16
THUMBNAIL = 160


def dhash(pixels: Pixels, crop: str = "") -> str:
    """Difference hash: whether each of 16×16 areas is darker than its right neighbour, 256 bits in hex.

    Copies that were scaled or compressed again differ in few bits. An image of one colour has no such bits, and
    would be like every other one: it gets "". Deep values are scaled by those of the image: no hash depends on others.
    """
    if not isinstance(pixels, Image.Image):
        lowest, highest = float(pixels.min()), float(pixels.max())
        if lowest == highest:
            return ""
        pixels = scale(pixels, lowest, highest)
    part = cut(pixels, crop)
    grey = part if part.mode == "L" else to_rgb(part).convert("L")
    darkest, lightest = grey.getextrema()
    if darkest == lightest:
        return ""
    areas = np.asarray(grey.resize((DHASH_SIDE + 1, DHASH_SIDE), Image.Resampling.BOX))
    return np.packbits(areas[:, 1:] > areas[:, :-1]).tobytes().hex()


def file_state(file: Path) -> tuple[int, int]:
    """Size and date of a file, by which a change is noticed; -1 for a missing one."""
    try:
        status = file.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def describe(pixels: Pixels, done: Sequence[str]) -> dict[str, Any]:
    """Size, pixel format, values and what was done, as ``CHECKED`` names them."""
    if isinstance(pixels, Image.Image):
        blended = is_transparent(pixels) and np.asarray(pixels.convert("RGBA"))[..., 3].min() < 255
        done = [*done, TRANSPARENT] if blended else done
        (width, height), lowest, highest = pixels.size, 0.0, 255.0
        pixel_format, deep = pixels.mode, ""
    else:
        (height, width), lowest, highest = pixels.shape[:2], float(pixels.min()), float(pixels.max())
        pixel_format = f"{pixels.dtype.name}{' RGB' if pixels.ndim == 3 else ''}"
        deep = "float" if pixels.dtype.kind == "f" else "integer"
    sizes = {"width": width, "height": height, "lowest": lowest, "highest": highest}
    return sizes | {"pixel_format": pixel_format, "deep": deep, "done": "|".join(done)}


@dataclass(frozen=True)
class ImageLoader:
    """Reads the images below ``folder``; larger ones than ``max_pixels`` are refused before decoding.

    ``memory`` is a Parquet file with what earlier runs found of each file.
    """

    dataset: str
    folder: Path
    max_pixels: int
    memory: Path

    def read(self, path: str, crop: str = "", pixel_range: str = "") -> Image.Image:
        """One image, or a crop of it, as RGB; a deep one is scaled by ``pixel_range``."""
        content = read_file(self.folder / path, self.max_pixels)
        return decode(path, content, self.max_pixels, crop, pixel_range)

    def thumbnail(self, path: str, crop: str, content_hash: str, pixel_range: str = "") -> Image.Image:
        """A small copy of an image or crop, cached beside the memory."""
        name = "-".join(part for part in (content_hash, crop, pixel_range) if part)
        cached = self.memory.with_name("thumbnails") / f"{name}.png"
        if cached.is_file():
            try:
                with Image.open(cached) as image:
                    return image.convert("RGB")
            except Exception as error:  # likewise
                logger.warning("%s is damaged (%s) and is made again", cached, error)
        small = self.read(path, crop, pixel_range)
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        with replacing(cached) as partial:
            small.save(partial, format="png")
        return small

    def thumbnails(self, samples: pd.DataFrame) -> list[Image.Image]:
        """Small copies of the images or crops of a sample table."""
        return [self.thumbnail(*row) for row in samples[["path", "crop", "content_hash", "pixel_range"]].to_numpy()]

    def examine_crops(self, path: str, crops: Sequence[str]) -> list[dict[str, Any]]:
        """What ``CHECKED`` names, of crops of one file; for an unusable file also its problem."""
        result: dict[str, Any] = dict.fromkeys(CHECKED, "") | dict.fromkeys(NUMBERS, 0)
        try:
            content = read_file(self.folder / path, self.max_pixels)
            result["content_hash"] = hashlib.sha256(content).hexdigest()
            pixels, done = open_image(path, content, self.max_pixels)
            result |= describe(pixels, done)
            return [result | {"dhash": dhash(pixels, crop)} for crop in crops]
        except Exception as error:  # parsers of damaged files let any error through
            return [result | {"problem": f"{type(error).__name__}: {error}"}] * len(crops)

    def _examine_batch(self, files: list[tuple[str, list[str]]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {
            (path, crop): row
            for path, crops in files
            for crop, row in zip(crops, self.examine_crops(path, crops), strict=True)
        }

    def examine_all(self, paths: list[str], processes: int, crops: list[str] | None = None) -> pd.DataFrame:
        """Examine files, or crops of them, in several processes; the rows are in the order of ``paths``.

        A file that was usable before and still has its size and date is not read again.
        """
        files = pd.DataFrame({"folder": str(self.folder), "path": paths, "crop": crops or [""] * len(paths)})
        stats = {path: file_state(self.folder / path) for path in dict.fromkeys(paths)}
        files[["size", "modified"]] = np.array([stats[path] for path in paths], dtype=np.int64).reshape(-1, 2)
        known = self._known_files()
        table = files.merge(known, on=FILE, how="left")
        new = table["content_hash"].isna().to_numpy()
        if new.any():
            table.loc[new, CHECKED] = self._examine_files(table[new], processes)[CHECKED].to_numpy()
            table = table.astype(KINDS)
            others = known[(known["folder"] != str(self.folder)) | ~known["path"].isin(set(paths))]
            usable = table[table["problem"] == ""]
            save_table(pd.concat([others, usable], ignore_index=True) if len(others) else usable, self.memory)
        return table.set_index("path")[CHECKED].astype(KINDS)

    def other_folders(self) -> list[str]:
        """Folders other than this one of which the memory knows files."""
        return sorted(set(self._known_files()["folder"]) - {str(self.folder)})

    def _known_files(self) -> pd.DataFrame:
        """What earlier runs found of usable files, within today's limit of pixels."""
        known = pd.DataFrame(columns=FILE + CHECKED).astype({"size": int, "modified": int})
        if self.memory.is_file():
            try:
                stored = load_table(self.memory, "all images are read again")
            except InputError as error:
                logger.warning(str(error))
                return known
            if set(known.columns) <= set(stored.columns):  # else of an older version: read again
                known = stored[stored["width"] * stored["height"] <= self.max_pixels]
        return known

    def _examine_files(self, files: pd.DataFrame, processes: int) -> pd.DataFrame:
        """Rows in the order of ``files``; each file is read once for all its crops."""
        crops_of = [(str(path), crops.tolist()) for path, crops in files.groupby("path", sort=False)["crop"]]
        batches = [crops_of[start : start + FILES_PER_TASK] for start in range(0, len(crops_of), FILES_PER_TASK)]
        alone = processes == 1 or len(batches) <= 2
        checked: dict[tuple[str, str], dict[str, Any]] = {}
        with (
            nullcontext(this_process(self._examine_batch))
            if alone
            else worker_processes(self._examine_batch, processes, 1) as workers,
            progress("Checking images", len(crops_of), "images") as bar,
        ):
            for index, rows in completed(workers, batches, "Checking images"):
                checked |= rows
                bar.update(len(batches[index]))
        keys = zip(files["path"], files["crop"], strict=True)
        return pd.DataFrame([checked[key] for key in keys], columns=CHECKED)
