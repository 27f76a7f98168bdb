"""Whatever a file holds becomes RGB of eight bits, or a named problem; files seen before are not read again."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from fuzzing.seeds import array_that_claims, chunk, png_that_claims
from mpfm_kedro.images import loading
from mpfm_kedro.images.decoding import FIRST_FRAME, TURNED, UPRIGHT, UnusableImageError, scale
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


def bmp_of_sixteen_bits(file: Path) -> None:
    """Five bits for each colour, which is not a deep image."""
    head = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 16, 0, 4, 0, 0, 0, 0)
    file.write_bytes(b"BM" + struct.pack("<IHHI", 58, 0, 0, 54) + head + struct.pack("<HH", 31 << 10, 31))


FILES = {
    "rgb.png": (pillow([[1, 2, 3], [255, 0, 9]], np.uint8), [[[1, 2, 3], [255, 0, 9]]]),
    "grey.bmp": (pillow([0, 7, 255], np.uint8), grey(0, 7, 255)),
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
    "two.npy": (lambda file: np.save(file, np.array([[3, 250]], np.uint8)), grey(3, 250)),
    "bits.npy": (lambda file: np.save(file, np.array([[False, True]])), grey(0, 255)),
    "grey.webp": (pillow([[7, 7, 7], [255, 255, 255]], np.uint8, lossless=True), grey(7, 255)),
    "grey.gif": (pillow([0, 7, 255], np.uint8), grey(0, 7, 255)),
    "bgr16.bmp": (bmp_of_sixteen_bits, [[[255, 0, 0], [0, 0, 255]]]),
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


def deep_colour_png(values: list, colour_type: int) -> Callable[[Path], None]:
    """A PNG of sixteen bits and several channels, which Pillow cannot write."""

    def save(file: Path) -> None:
        row = np.array(values, ">u2")
        header = struct.pack(">IIBBBBB", len(row), 1, 16, colour_type, 0, 0, 0)
        body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" + row.tobytes())) + chunk(b"IEND", b"")
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + body)

    return save


def colour_tiff(order: str, bits: int = 16, compression: int = 1, planes: int = 1) -> Callable[[Path], None]:
    """A TIFF of two pixels with more than eight bits for each colour, which Pillow cannot write."""
    values = np.array([[0, 16, 4095], [4095, 0, 16]], f"{order}{'u2' if bits == 16 else 'f4'}").tobytes()
    body = zlib.compress(values) if compression == 8 else values
    sizes = {
        256: 2,
        257: 1,
        258: 0,
        259: compression,
        262: 2,
        273: 0,
        277: 3,
        278: 1,
        279: len(body),
        284: planes,
        339: 0,
    }
    end = 8 + 2 + 12 * len(sizes) + 4
    places = {258: end, 339: end + 6, 273: end + 12}

    def save(file: Path) -> None:
        head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(sizes))
        for tag, value in sizes.items():
            kind, number = (3, 3) if tag in (258, 339) else (4, 1)
            head += struct.pack(f"{order}HHII", tag, kind, number, places.get(tag, value))
        lists = struct.pack(f"{order}6H", *[bits] * 3, *[1 if bits == 16 else 3] * 3)
        file.write_bytes(head + b"\0" * 4 + lists + body)

    return save


def array(values: list, kind: str) -> Callable[[Path], None]:
    return lambda file: np.save(file, np.array([values], kind))


DEEP = {
    "deep.png": (pillow([0, 257, 128 * 257, 65535], np.uint16), "0..65535", grey(0, 1, 128, 255)),
    "deep.tif": (pillow([0, 257, 128 * 257, 65535], np.uint16), "0..65535", grey(0, 1, 128, 255)),
    "deep-big-endian.tif": (deep_big_endian, "0..65535", grey(0, 1, 255)),
    "twelve.png": (pillow([0, 16, 4095], np.uint16), "0..4095", grey(0, 1, 255)),
    "deeper.tif": (pillow([-9, 0, 50, 100, 10**6], np.int32), "0..100", grey(0, 0, 128, 255, 255)),
    "float.tif": (pillow([-0.1, 0.0, 0.5, 1.0], np.float32), "0..1", grey(0, 0, 128, 255)),
    "signed.tif": (pillow([-1.0, 0.0, 1.0], np.float32), "-1..1", grey(0, 128, 255)),
    "float.npy": (array([0.0, 1 / 255, 1.0], "f8"), "0..1", grey(0, 1, 255)),
    "half.npy": (array([0.0, 0.5, 1.0], "f2"), "0..1", grey(0, 128, 255)),
    "words.npy": (array([0, 16, 4095], "u2"), "0..4095", grey(0, 1, 255)),
    "big-endian.npy": (array([0, 16, 4095], ">i4"), "0..4095", grey(0, 1, 255)),
    "colours.npy": (array([[0, 5, 255, 9], [1, 2, 3, 9]], "i8"), "0..255", [[[0, 5, 255], [1, 2, 3]]]),
    "colours.png": (deep_colour_png([[0, 16, 4095], [4095, 0, 16]], 2), "0..4095", [[[0, 1, 255], [255, 0, 1]]]),
    "clear.png": (deep_colour_png([[0, 16, 4095, 65535], [4095] * 3 + [0]], 6), "0..4095", [[[0, 1, 255], [0] * 3]]),
    "colours.tif": (colour_tiff("<"), "0..4095", [[[0, 1, 255], [255, 0, 1]]]),
    "colours-big-endian.tif": (colour_tiff(">"), "0..4095", [[[0, 1, 255], [255, 0, 1]]]),
    "colours-deflate.tif": (colour_tiff("<", compression=8), "0..4095", [[[0, 1, 255], [255, 0, 1]]]),
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_values_are_scaled_by_the_range(name, loader):
    write, pixel_range, expected = DEEP[name]
    write(loader.folder / name)
    image = loader.read(name, "", pixel_range)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), np.asarray(expected, np.uint8))
    checked = examine(loader, name)
    assert checked["problem"] == ""
    assert checked["deep"] == ("float" if "float" in checked["pixel_format"] else "integer")
    assert (checked["height"], checked["width"]) == np.asarray(expected).shape[:2]
    with pytest.raises(UnusableImageError, match="pixel_range"):
        loader.read(name)


@given(pixels=st.lists(st.integers(0, 255), min_size=1), bits=st.sampled_from([8, 10, 12, 14, 16]))
def test_eight_bits_survive_any_depth(pixels, bits):
    eight, most = np.array([pixels], np.uint8), 2**bits - 1
    deep = np.rint(eight / 255 * most).astype(np.uint16)
    for values, high in ((deep, most), (eight / np.float32(255), 1), (eight.astype(np.float64), 255)):
        np.testing.assert_array_equal(np.asarray(scale(values, 0, high))[..., 0], eight)


def test_deep_copies_have_the_perceptual_hash_of_eight_bits(loader):
    eight = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    eight[0, :2] = 0, 255
    Image.fromarray(eight).save(loader.folder / "eight.png")
    Image.fromarray(np.rint(eight / 255 * 4095).astype(np.uint16)).save(loader.folder / "twelve.png")
    Image.fromarray(eight / np.float32(255)).save(loader.folder / "float.tif")
    hashes = {examine(loader, name)["dhash"] for name in ("eight.png", "twelve.png", "float.tif")}
    assert len(hashes) == 1 and hashes != {""}
    np.save(loader.folder / "flat.npy", np.full((9, 9), 7.0))
    assert examine(loader, "flat.npy")["dhash"] == ""


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("suffix", ["tif", "npy"])
def test_values_that_are_not_finite_are_a_named_problem(value, suffix, loader):
    pixels = np.array([[0.0, value]], np.float32)
    if suffix == "npy":
        np.save(loader.folder / "a.npy", pixels)
    else:
        Image.fromarray(pixels).save(loader.folder / "a.tif")
    assert "not finite" in examine(loader, f"a.{suffix}")["problem"]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("planes.tif", colour_tiff("<", planes=2)),
        ("float.tif", colour_tiff("<", bits=32)),
        ("clear.png", deep_colour_png([[4095, 65535], [4095, 0]], 4)),
    ],
)
def test_deep_layout_that_is_not_read_is_refused_by_name(name, write, loader):
    write(loader.folder / name)
    assert "not read" in examine(loader, name)["problem"]
    assert "save it as PNG or .npy" in examine(loader, name)["problem"]


@pytest.mark.parametrize("orientation", [1, *UPRIGHT])
@pytest.mark.parametrize(
    ("suffix", "deep"), [("png", False), ("jpg", False), ("tif", False), ("webp", False), ("png", True), ("tif", True)]
)
def test_image_is_turned_as_its_exif_tag_says(orientation, suffix, deep, loader):
    upright = np.zeros((16, 24), np.uint16 if deep else np.uint8)
    upright[:8, :8] = 65535 if deep else 255
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    image = Image.fromarray(upright)
    if orientation > 1:
        image = image.transpose(back.get(orientation, UPRIGHT[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(loader.folder / f"a.{suffix}", exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    shown = np.asarray(loader.read(f"a.{suffix}", "", "0..65535"))[..., 0]
    np.testing.assert_allclose(shown, upright // 257 if deep else upright, atol=3)
    checked = examine(loader, f"a.{suffix}")
    assert (checked["width"], checked["height"]) == (24, 16)
    assert checked["done"] == ("" if orientation == 1 else TURNED)
    cropped = np.asarray(loader.read(f"a.{suffix}", "0,0,8,8", "0..65535"))
    assert cropped.shape == (8, 8, 3) and cropped.min() > 250


def test_damaged_exif_data_do_not_matter(loader):
    Image.new("RGB", (6, 4), (9, 9, 9)).save(loader.folder / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff no tags")
    assert examine(loader, "a.jpg")["problem"] == ""
    assert loader.read("a.jpg").size == (6, 4)


@pytest.mark.parametrize("suffix", ["gif", "tif", "webp", "png"])
def test_first_of_several_frames_is_used(suffix, loader):
    frames = [Image.new("RGB", (6, 4), (value, value, value)) for value in (200, 10, 90)]
    options = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(loader.folder / f"a.{suffix}", save_all=True, append_images=frames[1:], **options)
    assert examine(loader, f"a.{suffix}")["done"] == FIRST_FRAME
    assert loader.read(f"a.{suffix}").getpixel((0, 0)) == (200, 200, 200)


def test_crop_is_a_box_of_the_image(loader):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(loader.folder / "a.png")
    np.testing.assert_array_equal(np.asarray(loader.read("a.png", "2,1,8,5")), pixels[1:5, 2:8])
    np.testing.assert_array_equal(np.asarray(loader.read("a.png")), pixels)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "npy"])
def test_a_truncated_file_is_a_named_problem(suffix, loader):
    file = loader.folder / f"a.{suffix}"
    pixels = np.random.default_rng(1).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    np.save(file, pixels) if suffix == "npy" else Image.fromarray(pixels).save(file)
    os.truncate(file, file.stat().st_size - 100)
    assert examine(loader, file.name)["problem"]


@pytest.mark.parametrize("size", [(101, 100), (50_000, 60_000)])
def test_image_that_claims_to_be_huge_is_refused_before_decoding(size, loader, monkeypatch):
    def decode(self: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    (loader.folder / "bomb.png").write_bytes(png_that_claims(*size))
    problem = examine(loader, "bomb.png")["problem"]
    assert f"{size[0]} x {size[1]} pixels" in problem
    assert "max_megapixels = 0.01" in problem
    with pytest.raises(UnusableImageError, match="max_megapixels"):
        loader.read("bomb.png")


def test_array_that_claims_to_be_huge_is_refused_before_reading(loader):
    (loader.folder / "bomb.npy").write_bytes(array_that_claims(10**7, 10**6))  # more than any memory holds
    assert "max_megapixels" in examine(loader, "bomb.npy")["problem"]


def write_grey(file: Path, value: int) -> None:
    Image.new("RGB", (4, 4), (value, value, value)).save(file)


@pytest.fixture
def examined(monkeypatch) -> list[str]:
    """The names of the images that were read, in order; the table of what is known of them is none."""
    names: list[str] = []
    read_bytes = Path.read_bytes

    def count(self: Path) -> bytes:
        if self.suffix != ".parquet":
            names.append(self.name)
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", count)
    return names


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


def test_file_that_could_not_be_read_for_a_moment_is_tried_again(loader, monkeypatch):
    write_grey(loader.folder / "a.bmp", 1)
    with monkeypatch.context() as patch:
        read_bytes = Path.read_bytes

        def fail(self: Path) -> bytes:
            if self.suffix == ".parquet":
                return read_bytes(self)
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
    monkeypatch.setattr(loading, "FILES_PER_TASK", 2)
    names = [f"{number}.bmp" for number in range(7)]
    for number, name in enumerate(names):
        write_grey(loader.folder / name, number)
    (loader.folder / names[3]).write_bytes(b"no image")
    alone = loader.examine_all(names, processes=1)
    together = replace(loader, memory=tmp_path / "other.parquet").examine_all(names, processes=2)
    assert together.to_dict() == alone.to_dict()
    assert list(alone.index[alone["problem"] != ""]) == [names[3]]
    assert alone["content_hash"].nunique() == 7
