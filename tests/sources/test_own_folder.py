from __future__ import annotations

import re
import shutil

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


def test_data_root_itself(parted):
    assert SOURCE.locate(parted) == parted
    assert SOURCE.locate(parted.parent) == parted


def test_without_test_normals_the_split_is_left_open(parted, caplog):
    shutil.rmtree(parted / "test" / "good")
    table = SOURCE.list_samples(parted)
    assert set(table["split"]) == {""}
    assert (table["label"] == 0).sum() == 2
    assert "part of train/good will be the test" in caplog.text


def test_no_defects_at_all(tmp_path, draw):
    draw(tmp_path / "good" / "a.png")
    assert SOURCE.list_samples(SOURCE.locate(tmp_path))["label"].tolist() == [0]
    draw(tmp_path / "other" / "folder" / "train" / "good" / "a.png")
    assert SOURCE.list_samples(SOURCE.locate(tmp_path / "other"))["label"].tolist() == [0]


def test_masks_beside(build, draw):
    folder = build("folder")
    draw(folder / "ground_truth" / "dent" / "a.png")
    table = SOURCE.list_samples(folder).set_index("path")
    assert table["mask_path"]["dent/a.PNG"] == "ground_truth/dent/a.png"
    assert "ground_truth" not in set(table["defect_class"])


def test_missing_mask_is_reported(parted, draw, caplog):
    draw(parted / "test" / "dent" / "f.png")
    assert len(SOURCE.list_samples(parted)) == 6
    assert "f.png has no mask" in caplog.text


def test_mask_of_another_size(parted, draw):
    draw(parted / "ground_truth" / "dent" / "d_mask.png", (3, 3))
    with pytest.raises(InputError, match=r"d_mask\.png is 3x3, and its image .*d\.jpg is 8x6"):
        SOURCE.list_samples(parted)


def test_loose_images_are_reported(build, draw, caplog):
    folder = build("folder")
    draw(folder / "lost.png")
    assert len(SOURCE.list_samples(folder)) == 4
    assert "lost.png" in caplog.text


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
