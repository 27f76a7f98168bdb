"""How much the page takes: what is beyond is refused before it is read or decoded."""

from __future__ import annotations

MAX_IMAGES = 500  # on the page at once
MAX_BYTES = 50_000_000  # of one file
MAX_TOTAL = 2_000_000_000  # bytes of all files on the page
MEGAPIXELS = 50.0  # of one image
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # Pillow knows many more, some run programs
