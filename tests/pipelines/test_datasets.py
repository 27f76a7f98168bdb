"""The list of datasets: found or not, where it looked, how many, and an error is a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mpfm_kedro.pipelines.datasets import list_datasets
from mpfm_kedro.sources import SOURCES


def add_images(folder: Path, number: int, suffix: str = "") -> None:
    folder.mkdir(parents=True)
    for i in range(number):
        Image.new("L", (4, 4), i).save(folder / f"{i:03}{suffix}.png")


def listed(root: Path) -> tuple[pd.DataFrame, str]:
    table, text = list_datasets(str(root))
    return table.set_index("dataset"), text


def test_each_source_has_a_row_and_a_sentence(tmp_path):
    add_images(tmp_path / "brainmri" / "no", 98)
    add_images(tmp_path / "brainmri" / "yes", 155)
    add_images(tmp_path / "folder" / "good", 3)
    add_images(tmp_path / "folder" / "bad", 2)
    (tmp_path / "headct" / "head_ct").mkdir(parents=True)
    for name in ("train_typical", "test_typical", "test_novel/drt"):
        (tmp_path / "mastcam" / name).mkdir(parents=True)
        np.save(tmp_path / "mastcam" / name / "a.npy", np.zeros((4, 4, 6), np.uint8))
    table, text = listed(tmp_path)
    assert list(table.index) == list(SOURCES)
    assert (table[["licence", "obtain"]] != "").all(axis=None)
    for name, status, normals, expected, problem in (
        ("brainmri", "found", 98, 98, ""),
        ("folder", "found", 3, None, ""),
        ("mastcam", "other counts", 2, 9728, "2 normal images, published are 9728"),
        ("headct", "unusable", None, 100, str(tmp_path / "headct" / "labels.csv")),
        ("mvtec_ad", "missing", None, 3629 + 467, "is missing"),
    ):
        row = table.loc[name]
        assert (row["status"], row["folder"]) == (status, str(tmp_path / name))
        assert [None if pd.isna(row[n]) else row[n] for n in ("normals", "normals_expected")] == [normals, expected]
        assert problem in row["problem"]
    for sentence in (
        f"  brainmri: BrainMRI, 98 normal and 155 anomalous images, in {tmp_path / 'brainmri'}. From N. Chakrabarty",
        f"  folder: Own folder, 3 normal and 2 anomalous images, in {tmp_path / 'folder'}. From your own images",
        "  mvtec_ad (4,096 normal and 1,258 anomalous images, licence: CC BY-NC-SA 4.0). MVTec AD: the folder",
        str(tmp_path / "headct" / "labels.csv"),
    ):
        assert sentence in text
    headings = [line for line in text.splitlines() if line.endswith(":")]
    assert [heading.partition(",")[0] for heading in headings] == ["Ready to use", "Ready to use", "Found", "Not here:"]
    assert "nan" not in text and "NA" not in text


def test_listing_draws_and_decodes_nothing(tmp_path):
    (tmp_path / "folder" / "good").mkdir(parents=True)
    (tmp_path / "folder" / "good" / "a.png").write_bytes(b"no image")
    table, text = listed(tmp_path)
    assert table.loc["folder", "status"] == "found"
    assert table.loc["synthetic", "status"] == "missing" and "). Drawn when they are first used." in text
    assert not (tmp_path / "synthetic").exists()


@pytest.mark.parametrize(("normals", "status"), [(20, "found"), (19, "other counts")])
def test_categories_that_are_not_here_are_named(tmp_path, normals, status):
    bottle = tmp_path / "mvtec_ad" / "bottle"
    for part, number in (("train/good", 209), ("test/good", normals), ("test/broken_large", 63)):
        add_images(bottle / part, number)
    add_images(bottle / "ground_truth" / "broken_large", 63, "_mask")
    row = listed(tmp_path)[0].loc["mvtec_ad"]
    assert (row["status"], row["normals"], row["normals_expected"]) == (status, 209 + normals, 229)
    assert "not here: cable" in row["problem"] and ("bottle 228 normal" in row["problem"]) == (normals == 19)


def test_own_images_that_are_not_here_are_said_once(tmp_path):
    text = listed(tmp_path)[1]
    assert "  folder (" not in text
    assert text.splitlines()[-1].startswith("Your own images:") and "docs/own_images.md" in text
