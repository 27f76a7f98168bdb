"""The list of datasets: found or not, where it looked, how many, and an error is a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mpfm_kedro.pipelines.datasets.nodes import list_datasets, write_datasets
from mpfm_kedro.sources import SOURCES


def add_images(folder: Path, number: int) -> None:
    folder.mkdir(parents=True)
    for i in range(number):
        Image.new("L", (4, 4), i).save(folder / f"{i:03}.png")


@pytest.fixture
def listed(tmp_path: Path) -> pd.DataFrame:
    add_images(tmp_path / "brainmri" / "no", 98)
    add_images(tmp_path / "brainmri" / "yes", 155)
    add_images(tmp_path / "folder" / "good", 3)
    add_images(tmp_path / "folder" / "bad", 2)
    (tmp_path / "headct" / "head_ct").mkdir(parents=True)
    for name in ("train_typical", "test_typical", "test_novel/drt"):
        (tmp_path / "mastcam" / name).mkdir(parents=True)
        np.save(tmp_path / "mastcam" / name / "a.npy", np.zeros((4, 4, 6), np.uint8))
    return list_datasets(str(tmp_path)).set_index("dataset")


def test_every_source_has_a_row(listed):
    assert list(listed.index) == list(SOURCES)
    assert (listed["licence"] != "").all()
    assert (listed["obtain"] != "").all()


def test_found_with_the_published_counts(listed, tmp_path):
    found = listed.loc["brainmri"]
    assert (found["status"], found["problem"], found["folder"]) == ("found", "", str(tmp_path / "brainmri"))
    assert (found["normals"], found["normals_expected"]) == (98, 98)
    assert (found["anomalies"], found["anomalies_expected"]) == (155, 155)


def test_own_folder_has_any_number(listed):
    assert listed.loc["folder", "status"] == "found"
    assert listed.loc["folder", "normals"] == 3
    assert pd.isna(listed.loc["folder", "normals_expected"])


def test_missing_says_where_it_looked(listed, tmp_path):
    missing = listed.loc["mvtec_ad"]
    assert (missing["status"], missing["folder"]) == ("missing", str(tmp_path / "mvtec_ad"))
    assert (missing["normals_expected"], missing["anomalies_expected"]) == (3629 + 467, 1258)
    assert "is missing" in missing["problem"]


def test_error_becomes_the_text_of_the_row(listed, tmp_path):
    assert listed.loc["headct", "status"] == "unusable"
    assert str(tmp_path / "headct" / "labels.csv") in listed.loc["headct", "problem"]


def test_other_counts_are_named(listed):
    assert listed.loc["mastcam", "status"] == "other counts"
    assert "2 normal images, published are 9728" in listed.loc["mastcam", "problem"]
    assert listed.loc["mastcam", "normals"] == 2


def test_listing_draws_nothing(listed, tmp_path):
    assert listed.loc["synthetic", "status"] == "missing"
    assert not (tmp_path / "synthetic").exists()


def test_no_image_is_decoded(tmp_path, monkeypatch):
    (tmp_path / "folder" / "good").mkdir(parents=True)
    (tmp_path / "folder" / "good" / "a.png").write_bytes(b"no image")
    assert list_datasets(str(tmp_path)).set_index("dataset").loc["folder", "status"] == "found"


def test_categories_that_are_not_here_are_named(tmp_path):
    for part, number in (("train/good", 209), ("test/good", 20), ("test/broken_large", 63)):
        add_images(tmp_path / "mvtec_ad" / "bottle" / part, number)
    masks = tmp_path / "mvtec_ad" / "bottle" / "ground_truth" / "broken_large"
    masks.mkdir(parents=True)
    for i in range(63):
        Image.new("L", (4, 4)).save(masks / f"{i:03}_mask.png")
    row = list_datasets(str(tmp_path)).set_index("dataset").loc["mvtec_ad"]
    assert (row["status"], row["normals"], row["normals_expected"]) == ("found", 229, 229)
    assert row["problem"].startswith("not here: cable")


def test_text_is_the_same_from_a_stored_table(listed, tmp_path):
    table = listed.reset_index()
    text = write_datasets(table)
    for sentence in (
        f"  brainmri: BrainMRI, 98 normal and 155 anomalous images, in {tmp_path / 'brainmri'}. From N. Chakrabarty",
        f"  folder: Own folder, 3 normal and 2 anomalous images, in {tmp_path / 'folder'}. From your own images",
        "  mvtec_ad (4,096 normal and 1,258 anomalous images, licence: CC BY-NC-SA 4.0). MVTec AD: the folder",
        str(tmp_path / "headct" / "labels.csv"),
    ):
        assert sentence in text
    headings = [line for line in text.splitlines() if line.endswith(":")]
    assert [heading.partition(",")[0] for heading in headings] == ["Ready to use", "Ready to use", "Found", "Not here:"]
    assert "nan" not in text and "- of" not in text
    table.to_csv(tmp_path / "datasets.csv", index=False)
    assert write_datasets(pd.read_csv(tmp_path / "datasets.csv", keep_default_na=False)) == text


def test_own_images_that_are_not_here_are_said_once(tmp_path):
    text = write_datasets(list_datasets(str(tmp_path)))
    assert "  folder (" not in text
    assert text.splitlines()[-1].startswith("Your own images:") and "docs/own_images.md" in text
    assert "). Drawn when they are first used." in text
