"""The sample table: one row per image or crop.

Columns as a source lists them (``LISTED``):
    dataset, category, sample_id, path (below the source's folder), crop ("left,upper,right,lower" or ""),
    mask_path (where the defect is, for pixel metrics: below the source's folder, "" without one, several joined
    with "|"; checked to exist and to have the size of the image),
    label (0 normal, 1 anomaly),
    defect_class ("" for normals), split (train | test for normals of a source with its own split, "" where
    ingestion splits them), item (the physical thing: samples of one item are not independent).
Ingestion adds ``CHECKED``: content_hash, width, height, pixel_format, problem ("" for a usable image), dhash
(perceptual hash of the crop; "" for an image of one colour, or an unreadable one), lowest and highest value (0 and 255
for eight bits), deep ("" for eight bits, else integer or float) and done (what decoding did to it, joined with "|");
and pixel_range ("low..high", what a deep image is scaled by, the same for all of them; "" for eight bits).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError

LISTED = ["dataset", "category", "sample_id", "path", "crop", "mask_path", "label", "defect_class", "split", "item"]
CHECKED = ["content_hash", "width", "height", "pixel_format", "problem", "dhash", "lowest", "highest", "deep", "done"]


def sample(dataset: str, path: str, label: int, defect_class: str = "", **more: str) -> dict[str, Any]:
    """One row of a sample table; what is not given is empty, the id is path and crop."""
    given = {"dataset": dataset, "path": path, "label": label, "defect_class": defect_class}
    row = dict.fromkeys(LISTED, "") | given | more
    row["sample_id"] = f"{path}#{row['crop']}" if row["crop"] else path
    row["item"] = row["item"] or row["sample_id"]
    return row


def sample_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table sorted by id, the order in which splits and draws are made."""
    table = pd.DataFrame([dict(row) for row in rows], columns=LISTED)
    table = table.sort_values("sample_id", ignore_index=True)
    repeated = table["sample_id"][table["sample_id"].duplicated()]
    if len(repeated):
        raise InputError(f"Sample id listed twice: {repeated.iloc[0]}")
    return table


def parse_crop(crop: str) -> tuple[int, int, int, int] | None:
    """The box of a crop, or None for the whole image."""
    if not crop:
        return None
    left, upper, right, lower = (int(part) for part in crop.split(","))
    return left, upper, right, lower


def sample_size(crop: str, width: int, height: int) -> tuple[int, int]:
    """Width and height of a crop of a file, or of the whole file."""
    left, upper, right, lower = parse_crop(crop) or (0, 0, width, height)
    return right - left, lower - upper


def format_crop(box: tuple[int, int, int, int]) -> str:
    """A box as the table writes it; the inverse of ``parse_crop``."""
    return ",".join(str(edge) for edge in box)
