"""No path outside of the folder can be read, however it is named."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpfm_kedro.app.folder import ImageFolder
from mpfm_kedro.errors import InputError

SECRET = b"secret"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """A folder with an image, beside a file that is none of its, to which links lead."""
    top = tmp_path_factory.mktemp("top")
    root = top / "images"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/inside.png").write_bytes(b"image")
    (root / "a/notes.txt").write_bytes(SECRET)
    (top / "secret.png").write_bytes(SECRET)
    (root / "link.png").symlink_to(top / "secret.png")
    (root / "folder").symlink_to(top)
    (root / "circle").symlink_to(root / "circle")
    (root / os.fsdecode(b"odd-\xff.png")).write_bytes(b"image")
    (root / "a/within.png").symlink_to(root / "a/b/inside.png")
    (root / ".hidden").mkdir()
    (root / ".hidden/thumbnail.png").write_bytes(b"image")
    return ImageFolder(root)


PARTS = ["..", ".", "/", "a", "b", "folder", "circle", "secret.png", "link.png", "inside.png", "images", "~", "%2e%2e"]


@given(parts=st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=5)), max_size=8), absolute=st.booleans())
def test_only_images_inside_are_read(images: ImageFolder, parts: list[str], absolute: bool):
    name = "/".join(parts)
    try:
        content = images.read(f"{images.root}/{name}" if absolute else name)
    except InputError:
        return
    assert content == b"image"


@pytest.mark.parametrize(
    "name", ["link.png", "folder/secret.png", "../secret.png", "a/notes.txt", "circle", "a", "x\0.png", "a" * 5000]
)
def test_links_out_and_other_files_are_refused(images: ImageFolder, name: str):
    with pytest.raises(InputError, match="folder"):
        images.read(name)


def test_images_of_visible_folders_are_listed_by_their_names(images: ImageFolder):
    assert images.images(".") == ["link.png", "a/within.png", "a/b/inside.png"]
    assert images.folders() == [".", "a", "a/b"]


def test_a_pipe_does_not_hold_up(images: ImageFolder):
    pipe = images.root / "pipe.png"
    os.mkfifo(pipe)
    try:
        with pytest.raises(InputError, match="not an image"):
            images.read("pipe.png")
    finally:
        pipe.unlink()
