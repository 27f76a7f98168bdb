"""Small valid files of every kind that is read, and what may happen to their bytes."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cache

import numpy as np
from hypothesis import strategies as st
from PIL import Image

SIDE = 9


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def _array(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


@cache
def images() -> list[tuple[str, bytes]]:
    """Names and contents of images in all formats that are read."""
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8))
    deep = rng.integers(0, 60_000, (SIDE, SIDE), dtype=np.uint16)
    turned = Image.Exif()
    turned[274] = 6
    frames = [rgb.convert("P"), rgb.convert("P").rotate(90)]
    found = [(f"{mode}.png", _saved(rgb.convert(mode), "png")) for mode in ("L", "RGB", "RGBA", "P", "1", "LA")]
    found += [
        ("deep.png", _saved(Image.fromarray(deep), "png")),
        ("turned.png", _saved(rgb, "png", exif=turned)),
        ("photo.jpg", _saved(rgb, "jpeg", exif=turned)),
        ("grey.jpeg", _saved(rgb.convert("L"), "jpeg", progressive=True)),
        ("cmyk.jpg", _saved(rgb.convert("CMYK"), "jpeg")),
        ("one.bmp", _saved(rgb, "bmp")),
        ("palette.bmp", _saved(rgb.convert("P"), "bmp")),
        ("frames.gif", _saved(frames[0], "gif", save_all=True, append_images=frames[1:])),
        ("one.webp", _saved(rgb, "webp")),
        ("lossless.webp", _saved(rgb.convert("RGBA"), "webp", lossless=True)),
        ("plain.tif", _saved(rgb, "tiff")),
        ("deep.tiff", _saved(Image.fromarray(deep), "tiff")),
        ("float.tiff", _saved(Image.fromarray(deep.astype(np.float32)), "tiff")),
        ("lzw.tif", _saved(rgb, "tiff", compression="tiff_lzw")),
        ("jpeg.tif", _saved(rgb, "tiff", compression="jpeg")),
        ("fax.tif", _saved(rgb.convert("1"), "tiff", compression="group4")),
    ]
    kinds = [deep.astype(kind) for kind in (np.uint8, np.float32, bool, object)]
    arrays = [deep, np.stack([deep] * 3, -1), *kinds]
    return found + [(f"{number}.npy", _array(values)) for number, values in enumerate(arrays)]


def chunk(name: bytes, body: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def array_that_claims(*shape: int) -> bytes:
    """An array of a few bytes whose header claims this shape."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return content.getvalue() + b"\0" * 99


def damaged(content: bytes, seed: int) -> bytes:
    """The content with some bytes changed, inserted, repeated or cut; sometimes as it is, sometimes anything.

    Of one number alone, which a failing test prints: drawn byte by byte, most of the time would go into the drawing.
    """
    rng = random.Random(seed)
    if rng.randrange(30) == 0:
        return rng.randbytes(rng.randrange(200))
    changed = bytearray(content)
    for _ in range(rng.randrange(6)):
        if changed:
            _change(changed, rng)
    return bytes(changed)


def _change(content: bytearray, rng: random.Random) -> None:
    # headers are at the beginning, directories and footers often at the end
    where = rng.randrange(min(60, len(content)) if rng.randrange(2) else len(content))
    match rng.randrange(6):
        case 0:
            content[where] = rng.randrange(256)
        case 1:
            size, order = rng.choice([2, 4, 8]), rng.choice(["little", "big"])
            limits = [0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (4 * size), rng.getrandbits(8 * size)]
            content[where : where + size] = rng.choice(limits).to_bytes(size, order)  # type: ignore[arg-type]
        case 2:
            content[where:where] = rng.randbytes(rng.randrange(1, 12))
        case 3:
            del content[where : where + rng.randrange(1, 12)]
        case 4:
            start = rng.randrange(len(content))
            content[where:where] = content[start : start + rng.randrange(1, 40)]
        case 5:
            del content[where:]


SEEDS = st.integers(0, 2**64)


def damaged_images() -> st.SearchStrategy[tuple[str, bytes]]:
    """Name and content of an image to which something happened."""
    return st.tuples(st.sampled_from(images()), SEEDS).map(lambda own: (own[0][0], damaged(own[0][1], own[1])))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def set_somewhere(data: st.DataObject, document: dict) -> None:
    """Put anything anywhere into a JSON document."""
    place = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and data.draw(st.booleans()):
            place = place[key]
            continue
        if isinstance(place, dict) and data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = data.draw(JSON | st.just("../../card.json"))
        return
