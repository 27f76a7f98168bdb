import os
import re

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.folder import SOURCE


@pytest.fixture
def parted(tmp_path, draw):
    folder = tmp_path / "raw" / "folder"
    for name in (
        "train/good/a.png",
        "train/good/b.png",
        "test/good/c.png",
        "test/dent/d.jpg",
        "test/scratch/e.png",
    ):
        draw(folder / name)
    draw(folder / "ground_truth" / "dent" / "d_mask.png", marks=((1, 1),))
    return folder


def test_good_beside_the_classes(build):
    table = SOURCE.list_samples(build("folder")).set_index("path")
    assert table["defect_class"].to_dict() == {
        "dent/a.PNG": "dent",
        "good/a.png": "",
        "good/b.jpg": "",
        "scratch/a.png": "scratch",
    }
    assert set(table["split"]) == {""}


def test_mvtec_layout_brings_its_split(parted):
    table = SOURCE.list_samples(parted).set_index("path")
    assert table["split"].to_dict() == {
        "test/dent/d.jpg": "",
        "test/good/c.png": "test",
        "test/scratch/e.png": "",
        "train/good/a.png": "train",
        "train/good/b.png": "train",
    }
    assert table["mask_path"]["test/dent/d.jpg"] == "ground_truth/dent/d_mask.png"
    assert table["mask_path"]["test/scratch/e.png"] == ""


def test_masks_beside(build, draw):
    folder = build("folder")
    draw(folder / "ground_truth" / "dent" / "a.png")
    table = SOURCE.list_samples(folder).set_index("path")
    assert table["mask_path"]["dent/a.PNG"] == "ground_truth/dent/a.png"
    assert "ground_truth" not in set(table["defect_class"])


def test_layout_must_be_one_of_two(build, draw, tmp_path):
    folder = build("folder")
    draw(folder / "train" / "good" / "a.png")
    with pytest.raises(InputError, match="has both"):
        SOURCE.list_samples(folder)
    with pytest.raises(InputError, match="has neither"):
        SOURCE.list_samples(tmp_path)


@pytest.mark.parametrize("extra", ["train/bad", "validation"])
def test_extra_folder_in_mvtec_layout(parted, draw, extra):
    draw(parted / extra / "a.png")
    with pytest.raises(InputError, match=re.escape(f"unknown folder {parted / extra}")):
        SOURCE.list_samples(parted)


def test_folders_in_a_class_belong_to_it(build, draw):
    folder = build("folder")
    for name in ("good/batch1/a.png", "good/batch1/deep/er.png", "good/good/z.png", "dent/left/a.png"):
        draw(folder / name)
    table = SOURCE.list_samples(folder).set_index("path")
    assert table["defect_class"].to_dict() == {
        "dent/a.PNG": "dent",
        "dent/left/a.png": "dent",
        "good/a.png": "",
        "good/b.jpg": "",
        "good/batch1/a.png": "",
        "good/batch1/deep/er.png": "",
        "good/good/z.png": "",
        "scratch/a.png": "scratch",
    }


def test_masks_of_nested_images_are_nested_alike(parted, draw):
    for part in ("left", "right"):
        draw(parted / "test" / "dent" / part / "d.png")
    draw(parted / "ground_truth" / "dent" / "left" / "d_mask.png")
    table = SOURCE.list_samples(parted).set_index("path")
    assert table["mask_path"]["test/dent/left/d.png"] == "ground_truth/dent/left/d_mask.png"
    assert table["mask_path"]["test/dent/right/d.png"] == ""
    assert table["mask_path"]["test/dent/d.jpg"] == "ground_truth/dent/d_mask.png"


@pytest.mark.parametrize("name", ["loop", "good/loop", "good/batch/loop", "dent/loop"])
@pytest.mark.parametrize("up", [0, 1])
def test_link_to_a_folder_above_is_reported_and_not_followed(build, draw, name, up, caplog):
    folder = build("folder")
    draw(folder / "good" / "batch" / "a.png")
    before = SOURCE.list_samples(folder)
    link = folder / name
    link.symlink_to(link.parents[min(up, name.count("/"))], target_is_directory=True)
    assert SOURCE.list_samples(folder).equals(before)
    assert f"{link} is a link to a folder that it is in" in caplog.text


def test_files_that_are_not_read_are_named_by_their_kinds(build, caplog):
    folder = build("folder")
    for name in ("a.heic", "b.JP2", "c.jp2", "notes"):
        (folder / "good" / name).write_text("")
    SOURCE.list_samples(folder)
    assert f"not read in {folder / 'good'}: 4 files (.heic, .jp2, notes), e.g. {folder / 'good/a.heic'}" in caplog.text


def test_linked_images_and_folders_are_used(build, draw, tmp_path):
    folder = build("folder")
    draw(tmp_path / "elsewhere" / "far.png")
    (folder / "good" / "near.png").symlink_to(tmp_path / "elsewhere" / "far.png")
    (folder / "good" / "more").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert {"good/near.png", "good/more/far.png"} <= set(SOURCE.list_samples(folder)["path"])


@pytest.mark.parametrize("parent", [b"good", b"dent", b"gr\xfcn"])
def test_name_that_is_not_utf8_is_refused_by_name(build, draw, parent):
    folder = build("folder")
    image = draw(folder / "spare.png")
    odd = folder / os.fsdecode(parent)
    odd.mkdir(exist_ok=True)
    image.rename(odd / ("a.png" if b"\xfc" in parent else os.fsdecode(b"gr\xfcn.png")))
    with pytest.raises(InputError, match=r"the name b'gr\\xfcn.* is not UTF-8; rename it") as raised:
        SOURCE.list_samples(folder)
    str(raised.value).encode("utf-8")  # it can be printed


def test_missing_data_root_is_named_as_it_was_typed(tmp_path):
    with pytest.raises(InputError, match=re.escape(f"data_root {tmp_path / 'nowhere'} does not exist")):
        SOURCE.locate(tmp_path / "nowhere")
    (tmp_path / "parts.zip").write_text("")
    with pytest.raises(InputError, match=re.escape(f"data_root {tmp_path / 'parts.zip'} is not a folder")):
        SOURCE.locate(tmp_path / "parts.zip")


def test_data_root_without_the_layout_is_named_with_what_it_holds(tmp_path, draw):
    draw(tmp_path / "bolts" / "OK" / "a.png")
    (tmp_path / "screws").mkdir()
    with pytest.raises(InputError, match=r"neither good/ nor train/good. It holds the folders bolts, screws") as raised:
        SOURCE.locate(tmp_path)
    assert f"data_root {tmp_path} " in str(raised.value)
    with pytest.raises(InputError, match=r"It holds 1 images and no folder\. Call the folder of good images good"):
        SOURCE.locate(tmp_path / "bolts" / "OK")


@pytest.mark.parametrize("typed", ["", "images/good"])
def test_data_root_a_step_too_high_or_too_low_is_corrected(tmp_path, draw, typed):
    draw(tmp_path / "images" / "good" / "a.png")
    meant = tmp_path / "images"
    with pytest.raises(InputError, match=re.escape(f"{meant} has: is data_root={meant} meant?")):
        SOURCE.locate(tmp_path / typed)
