"""Groups of the normals, as a part of a page: which kinds of good part were found."""

from __future__ import annotations

import base64
import io

import pandas as pd
from PIL import Image

from mpfm_kedro.reports.markup import paragraphs

SIDE = 96
EXPLAINED = (
    "The groups that K-means++ found among the normal training images of the first run, the largest first, each with "
    "its most typical images. The flow has a prototype for each of them, and an image's scores are compared with those "
    "of the groups that it is like."
)


def to_strip(thumbnails: list[Image.Image]) -> bytes:
    """Some images side by side, as JPEG."""
    strip = Image.new("RGB", (SIDE * max(1, len(thumbnails)), SIDE), "white")
    for number, image in enumerate(thumbnails):
        small = image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        strip.paste(small, (number * SIDE, 0))
    content = io.BytesIO()
    strip.save(content, format="jpeg", quality=85)
    return content.getvalue()


def show_groups(groups: pd.DataFrame) -> list[str]:
    """One strip of images per group."""
    shown = []
    for row in groups.to_dict("records"):
        source = base64.b64encode(row["image"]).decode()
        caption = f"{row['size']:,} normals"
        shown.append(f"<p><img alt='{caption}' src='data:image/jpeg;base64,{source}'><br>{caption}</p>")
    return ["<h2>Groups of normal images</h2>", *paragraphs([EXPLAINED]), f"<div class='panels'>{''.join(shown)}</div>"]
