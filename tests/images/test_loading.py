"""Whatever a file holds becomes RGB of eight bits, or a named problem; files seen before are not read again."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from mpfm_kedro.images import loading
from mpfm_kedro.images.decoding import UnusableImageError
from mpfm_kedro.images.loading import ImageLoader

LIMIT = 10_000


@pytest.fixture
def loader(tmp_path: Path) -> ImageLoader:
    (tmp_path / "raw").mkdir()
    return ImageLoader("folder", tmp_path / "raw", LIMIT, tmp_path / "memory" / "files.parquet")


def examine(loader: ImageLoader, name: str) -> dict:
    """What is found of a whole file."""
    (checked,) = loader.examine_crops(name, [""])
    return checked


def grey(*values: int) -> np.ndarray:
    return np.repeat(np.array([values], np.uint8)[..., None], 3, axis=2)


def palette(transparent: int | None = None) -> Callable[[Path], None]:
    def save(file: Path) -> None:
        image = Image.fromarray(np.array([[0, 1]], np.uint8)).convert("P")
        image.putdata([0, 1])
        image.putpalette([10, 20, 30, 200, 100, 50])
        image.save(file, **({} if transparent is None else {"transparency": transparent}))

    return save


def pillow(array: list, kind: type, mode: str | None = None, **options: object) -> Callable[[Path], None]:
    def save(file: Path) -> None:
        image = Image.fromarray(np.array([array], kind))
        (image if mode is None else image.convert(mode)).save(file, **options)

    return save


def deep_big_endian(file: Path) -> None:
    content = np.array([0, 257, 65535], ">u2").tobytes()
    Image.frombytes("I;16B", (3, 1), content).save(file)


def cmyk(file: Path) -> None:
    Image.frombytes("CMYK", (3, 1), bytes([0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0])).save(file)


FILES = {
    "rgb.png": (pillow([[1, 2, 3], [255, 0, 9]], np.uint8), [[[1, 2, 3], [255, 0, 9]]]),
    "grey.bmp": (pillow([0, 7, 255], np.uint8), grey(0, 7, 255)),
    "deep.png": (pillow([0, 257, 128 * 257, 65535], np.uint16), grey(0, 1, 128, 255)),
    "deep.tif": (pillow([0, 257, 128 * 257, 65535], np.uint16), grey(0, 1, 128, 255)),
    "deep-big-endian.tif": (deep_big_endian, grey(0, 1, 255)),
    "deeper.tif": (pillow([-9, 257, 65535, 10**6], np.int32), grey(0, 1, 255, 255)),
    "palette.png": (palette(), [[[10, 20, 30], [200, 100, 50]]]),
    "palette-transparent.png": (palette(transparent=0), [[[0, 0, 0], [200, 100, 50]]]),
    "rgba.png": (
        pillow([[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 51]], np.uint8),
        [[[200, 100, 50], [0, 0, 0], [40, 20, 10]]],
    ),
    "la.png": (pillow([[200, 255], [200, 0], [200, 51]], np.uint8), grey(200, 0, 40)),
    "grey-transparent.png": (pillow([5, 200], np.uint8, transparency=200), grey(5, 0)),
    "rgb-transparent.png": (
        pillow([[9, 8, 7], [1, 2, 3]], np.uint8, transparency=(1, 2, 3)),
        [[[9, 8, 7], [0, 0, 0]]],
    ),
    "bits.png": (pillow([0, 255, 255], np.uint8, "1"), grey(0, 255, 255)),
    "cmyk.tif": (cmyk, [[[255, 255, 255], [0, 0, 0], [0, 255, 255]]]),
    "float.tif": (pillow([-5, 0.9, 128.4, 300], np.float32), grey(0, 0, 128, 255)),
    "two.npy": (lambda file: np.save(file, np.array([[3, 250]], np.uint8)), grey(3, 250)),
    "wide.npy": (lambda file: np.save(file, np.array([[-4.0, 300.0]])), grey(0, 255)),
    "six.npy": (lambda file: np.save(file, np.arange(12, dtype=np.uint8).reshape(1, 2, 6)), [[[0, 1, 2], [6, 7, 8]]]),
    "one.npy": (lambda file: np.save(file, np.array([[[3], [250]]], np.uint8)), grey(3, 250)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_becomes_rgb(name, loader):
    write, expected = FILES[name]
    write(loader.folder / name)
    image = loader.read(name)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), np.asarray(expected, np.uint8))
    checked = examine(loader, name)
    assert checked["problem"] == ""
    assert (checked["height"], checked["width"]) == np.asarray(expected).shape[:2]


def test_crop_is_a_box_of_the_image(loader):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(loader.folder / "a.png")
    np.testing.assert_array_equal(np.asarray(loader.read("a.png", "2,1,8,5")), pixels[1:5, 2:8])
    np.testing.assert_array_equal(np.asarray(loader.read("a.png")), pixels)


def encoded(suffix: str) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    if suffix == "npy":
        np.save(buffer, pixels)
    else:
        Image.fromarray(pixels).save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix))
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "npy"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "text", "missing"])
def test_damaged_file_is_a_named_problem(suffix, damage, loader):
    content = {"empty": b"", "truncated": encoded(suffix)[:-100], "text": b"<html>not found</html>", "missing": None}
    if content[damage] is not None:
        (loader.folder / f"a.{suffix}").write_bytes(content[damage])
    checked = examine(loader, f"a.{suffix}")
    assert checked["problem"]
    assert (checked["content_hash"] == "") == (damage == "missing")


@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (0, 0), (5,)])
def test_array_that_is_no_image_is_a_named_problem(shape, loader):
    np.save(loader.folder / "a.npy", np.zeros(shape, np.uint8))
    assert examine(loader, "a.npy")["problem"]


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "npy"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_content_stops_the_examination(suffix, data, tmp_path_factory):
    content = bytearray(encoded(suffix))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / f"a.{suffix}").write_bytes(bytes(content))
    small = ImageLoader("folder", folder, LIMIT, folder / "memory")
    checked = examine(small, f"a.{suffix}")
    if not checked["problem"]:
        assert small.read(f"a.{suffix}").mode == "RGB"


def png_with_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(101, 100), (50_000, 60_000)])
def test_image_that_claims_to_be_huge_is_refused_before_decoding(size, loader, monkeypatch):
    def decode(self: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    (loader.folder / "bomb.png").write_bytes(png_with_header(*size))
    problem = examine(loader, "bomb.png")["problem"]
    assert f"{size[0]} x {size[1]} pixels" in problem
    assert "max_megapixels = 0.01" in problem
    with pytest.raises(UnusableImageError, match="max_megapixels"):
        loader.read("bomb.png")


def test_array_that_claims_to_be_huge_is_refused_before_reading(loader):
    header = io.BytesIO()
    shape = (10**7, 10**6)  # more than any memory holds
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    (loader.folder / "bomb.npy").write_bytes(header.getvalue() + b"\0" * 99)
    assert "max_megapixels" in examine(loader, "bomb.npy")["problem"]


def test_array_above_the_limit_is_refused(loader):
    np.save(loader.folder / "large.npy", np.zeros((101, 100), np.uint8))
    assert "max_megapixels" in examine(loader, "large.npy")["problem"]


def test_own_limit_takes_precedence_over_the_decoder_s(loader, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    Image.new("RGB", (20, 20)).save(loader.folder / "a.png")
    assert examine(loader, "a.png")["problem"] == ""
    assert loader.read("a.png").size == (20, 20)
    assert Image.MAX_IMAGE_PIXELS == 10


def write_grey(file: Path, value: int) -> None:
    Image.new("RGB", (4, 4), (value, value, value)).save(file)


@pytest.fixture
def examined(monkeypatch) -> list[str]:
    """The names of the files that were read, in order."""
    names: list[str] = []
    read_bytes = Path.read_bytes

    def count(self: Path) -> bytes:
        names.append(self.name)
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", count)
    return names


def test_file_of_the_same_size_and_date_is_not_read_again(loader, examined):
    for name in ("a.bmp", "b.bmp"):
        write_grey(loader.folder / name, 1)
    first = loader.examine_all(["a.bmp", "b.bmp"], processes=1)
    assert examined == ["a.bmp", "b.bmp"]
    status = (loader.folder / "a.bmp").stat()
    write_grey(loader.folder / "a.bmp", 2)
    os.utime(loader.folder / "a.bmp", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert loader.examine_all(["a.bmp", "b.bmp"], processes=1).to_dict() == first.to_dict()
    assert examined == ["a.bmp", "b.bmp"]


def test_only_a_changed_or_new_file_is_read_again(loader, examined):
    for name in ("a.bmp", "b.bmp"):
        write_grey(loader.folder / name, 1)
    first = loader.examine_all(["a.bmp", "b.bmp"], processes=1)
    write_grey(loader.folder / "a.bmp", 2)
    os.utime(loader.folder / "a.bmp", ns=(1, 1))
    write_grey(loader.folder / "c.bmp", 3)
    examined.clear()
    second = loader.examine_all(["a.bmp", "b.bmp", "c.bmp"], processes=1)
    assert examined == ["a.bmp", "c.bmp"]
    assert second.loc["a.bmp", "content_hash"] != first.loc["a.bmp", "content_hash"]
    assert second.loc["b.bmp"].to_dict() == first.loc["b.bmp"].to_dict()
    examined.clear()
    loader.examine_all(["c.bmp"], processes=1)
    loader.examine_all(["a.bmp", "b.bmp"], processes=1)
    assert examined == []


def test_missing_file_is_read_once_it_is_there(loader):
    assert loader.examine_all(["a.bmp"], processes=1).loc["a.bmp", "problem"]
    write_grey(loader.folder / "a.bmp", 1)
    assert loader.examine_all(["a.bmp"], processes=1).loc["a.bmp", "problem"] == ""


def test_file_that_could_not_be_read_for_a_moment_is_tried_again(loader, monkeypatch):
    write_grey(loader.folder / "a.bmp", 1)
    with monkeypatch.context() as patch:

        def fail(self: Path) -> bytes:
            raise OSError(5, "Input/output error")

        patch.setattr(Path, "read_bytes", fail)
        assert "Input/output error" in loader.examine_all(["a.bmp"], processes=1).loc["a.bmp", "problem"]
    assert loader.examine_all(["a.bmp"], processes=1).loc["a.bmp", "problem"] == ""


def test_another_limit_is_applied_to_files_seen_before(loader):
    Image.new("L", (200, 100)).save(loader.folder / "a.png")
    larger = replace(loader, max_pixels=10 * LIMIT)
    assert loader.examine_all(["a.png"], processes=1).loc["a.png", "problem"]
    assert larger.examine_all(["a.png"], processes=1).loc["a.png", "problem"] == ""
    assert loader.examine_all(["a.png"], processes=1).loc["a.png", "problem"]


def test_another_folder_of_the_same_dataset_is_not_mistaken_for_the_first(loader, tmp_path):
    other = replace(loader, folder=tmp_path / "other")
    other.folder.mkdir()
    for value, folder in enumerate((loader.folder, other.folder)):
        write_grey(folder / "a.bmp", value)
        os.utime(folder / "a.bmp", ns=(1, 1))
    first, second = (each.examine_all(["a.bmp"], processes=1) for each in (loader, other))
    assert first.loc["a.bmp", "content_hash"] != second.loc["a.bmp", "content_hash"]


def test_several_processes_give_the_table_of_one(loader, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "FILES_IN_ONE_PIECE", 2)
    names = [f"{number}.bmp" for number in range(7)]
    for number, name in enumerate(names):
        write_grey(loader.folder / name, number)
    (loader.folder / names[3]).write_bytes(b"no image")
    alone = loader.examine_all(names, processes=1)
    together = replace(loader, memory=tmp_path / "other.parquet").examine_all(names, processes=2)
    assert together.to_dict() == alone.to_dict()
    assert list(alone.index[alone["problem"] != ""]) == [names[3]]
    assert alone["content_hash"].nunique() == 7
