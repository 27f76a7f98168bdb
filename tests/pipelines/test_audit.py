"""Repeated images are found, exactly and nearly, and counted where they are."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader, dhash
from mpfm_kedro.images.near import near_sets
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.pipelines.audit import audit_samples, find_repeats, list_findings
from mpfm_kedro.pipelines.ingestion import check_images, split_normals
from mpfm_kedro.sources import get_source
from mpfm_kedro.sources.samples import sample, sample_table
from running import PROJECT, run

DATA = PROJECT.parent / "shared" / "data"
STRICT = IngestionParameters(allow_partial=True, max_unreadable_share=0.5, max_megapixels=100)
BY_ITEM, DROPPING = (STRICT.model_copy(update={name: True}) for name in ("split_by_item", "drop_duplicates"))


def picture(number: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """A smooth picture; each number another one."""
    coarse = np.random.default_rng(number).integers(0, 256, (7, 9), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def table(**columns: list) -> pd.DataFrame:
    """Checked and divided samples: sample_id, split and content_hash are given, the rest follows."""
    samples = pd.DataFrame(columns)
    defaults = {"dataset": "folder", "category": "", "crop": "", "defect_class": "", "problem": ""}
    defaults |= {"pixel_format": "L", "width": 8, "height": 8, "mask_path": "", "dhash": ""}
    samples = samples.assign(**{name: value for name, value in defaults.items() if name not in samples})
    samples["label"] = (samples["split"] == "anomaly").astype(int)
    return samples.assign(path=samples["sample_id"], item=samples.get("item", samples["sample_id"]))


def row(audit: pd.DataFrame, finding: str, where: str) -> tuple[int, int, int]:
    found = audit[(audit["finding"] == finding) & (audit["where"] == where)]
    assert len(found) == 1
    return tuple(found[["sets", "images", "repeats"]].iloc[0])


def audited(samples: pd.DataFrame) -> pd.DataFrame:
    return list_findings(samples, find_repeats(samples))


def compressed(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=60)
    return Image.open(buffer)


def distance(first: str, second: str) -> int:
    return (int(first, 16) ^ int(second, 16)).bit_count()


@pytest.mark.parametrize("number", range(5))
def test_hash_survives_scaling_and_compression_and_tells_pictures_apart(number):
    original = dhash(picture(number))
    assert len(original) == 64
    assert distance(original, dhash(picture(number, (200, 150)))) <= 8
    assert distance(original, dhash(compressed(picture(number, (640, 480))))) <= 8
    assert distance(original, dhash(picture(number + 1))) > 30


def test_sets_are_those_of_all_pairs():
    bits = np.random.default_rng(0).integers(0, 2, (4, 256), dtype=np.uint8)
    chain = np.repeat(bits[:1], 3, axis=0)
    chain[1, :8] ^= 1
    chain[2, :16] ^= 1  # 16 from the first, 8 from the second
    apart = bits[:1].copy()
    apart[0, 100:109] ^= 1
    hashes = [values.tobytes().hex() for values in np.packbits(np.vstack([bits, chain, apart]), axis=1)]
    sets = near_sets(hashes)
    assert sets[0] == sets[4] == sets[5] == sets[6]
    assert len(set(sets)) == 5


def test_exact_repeats_are_counted_by_place():
    samples = table(
        sample_id=list("abcdefgh"),
        split=["train", "train", "test", "test", "test", "anomaly", "anomaly", "anomaly"],
        content_hash=["1", "1", "1", "2", "2", "3", "3", "2"],
        defect_class=["", "", "", "", "", "dent", "hole", "hole"],
    )
    audit = audited(samples)
    assert row(audit, "exact duplicates", "all") == (3, 8, 5)
    assert row(audit, "exact duplicates", "within train") == (1, 2, 1)
    assert row(audit, "exact duplicates", "within test") == (1, 2, 1)
    assert row(audit, "exact duplicates", "within anomaly") == (1, 2, 1)
    assert row(audit, "exact duplicates", "across train and test") == (1, 3, 1)
    assert row(audit, "exact duplicates", "across labels") == (1, 3, 1)
    assert row(audit, "exact duplicates", "across classes") == (1, 2, 1)


def test_crops_of_one_file_and_categories_do_not_meet():
    samples = table(sample_id=["a", "b"], split=["train", "test"], content_hash=["1", "1"])
    alike = samples.assign(dhash="0" * 63 + "1", content_hash=["1", "2"])
    assert len(find_repeats(samples)) == len(find_repeats(alike)) == 2
    assert find_repeats(samples.assign(crop=["0,0,4,4", "4,0,8,4"])).empty
    for apart in (samples, alike):
        assert find_repeats(apart.assign(category=["nut", "tile"])).empty


def test_near_set_needs_two_contents_and_lists_their_copies():
    samples = table(sample_id=list("abcd"), split=["train", "train", "test", "test"], content_hash=["1", "1", "2", "3"])
    samples["dhash"] = ["f" * 64, "f" * 64, "f" * 63 + "e", "0" * 63 + "1"]
    repeated = find_repeats(samples)
    assert repeated.groupby("set")["sample_id"].agg("".join).to_dict() == {"exact 1": "ab", "near 1": "abc"}


def test_images_of_one_colour_are_a_number_and_no_set():
    samples = table(sample_id=list("abcd"), split=["train"] * 4, content_hash=list("1234"))
    assert find_repeats(samples).empty
    assert audited(samples).set_index(["finding", "where"]).loc[("one colour", "train"), "images"] == 4


def test_unreadable_files_repeat_nothing():
    samples = table(sample_id=["a", "b"], split=["train", "test"], content_hash=["1", "1"])
    samples["problem"] = "OSError: broken"
    audit = audited(samples)
    assert row(audit, "exact duplicates", "all") == (0, 0, 0)
    found = audit[audit["finding"] == "unreadable"].iloc[0]
    assert found["images"] == 2
    assert found["detail"] == "for example a (OSError: broken)"


def test_items_on_both_sides_are_counted():
    samples = table(
        sample_id=list("abcde"), split=["train", "test", "test", "train", "anomaly"], content_hash=list("12345")
    )
    samples["item"] = ["item", "item", "item", "other", "other"]
    audit = audited(samples)
    assert row(audit, "items", "across train and test") == (1, 3, 2)
    assert row(audit, "items", "across labels") == (1, 2, 1)


def test_one_line_where_train_and_test_share_images(caplog):
    samples = table(
        sample_id=list("abcd"), split=["train", "test", "test", "anomaly"], content_hash=["1", "1", "1", "2"]
    )
    with caplog.at_level(logging.WARNING):
        audited(samples)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "share exact copies (1), for example" in caplog.text
    assert "a = b" in caplog.text


def test_no_line_where_nothing_is_shared_or_all_of_it_is_dropped(caplog):
    splits = ["train", "test", "test", "anomaly", "train", "train", "train"]
    samples = table(sample_id=list("abcdefg"), split=splits, content_hash=list("1132456"))
    dropped = split_normals(samples, DROPPING)
    caplog.clear()
    audit = audited(dropped)
    assert not caplog.records
    assert row(audit, "exact duplicates", "across train and test") == (1, 2, 1)
    assert audit[audit["finding"] == "dropped"]["images"].tolist() == [1]


def test_contradictory_labels_are_an_error_line(caplog):
    audited(table(sample_id=["a", "b"], split=["train", "anomaly"], content_hash=["1", "1"]))
    assert [(record.levelname, "a, b" in record.message) for record in caplog.records] == [("ERROR", True)]


def test_a_part_that_is_nearly_the_same_as_good_and_as_defect_is_named_and_shown_first(tmp_path, caplog):
    for folder, kind in (("good", [0, 1, 2, 3, 4, 4, 5, 6, 7]), ("dent", [3, 9])):
        (tmp_path / folder).mkdir()
        for name, number in enumerate(kind):
            image = picture(number)
            (compressed(image) if folder == "dent" or name == 5 else image).save(tmp_path / folder / f"{name}.png")
    samples = ingested(ImageLoader("folder", tmp_path, 10**6, tmp_path / "memory" / "files.parquet"))
    assert samples.groupby("item")["sample_id"].agg(list)["dent/0.png"] == ["dent/0.png", "good/3.png"]
    *_, sheet = audit_samples(samples, ImageLoader("folder", tmp_path, 10**6, tmp_path / "memory" / "files.parquet"))
    assert "Nearly the same image is normal and anomalous (1, see duplicate_sheet.png)" in caplog.text
    assert "for example dent/0.png = good/3.png" in caplog.text
    titles = [axis.get_title() for axis in sheet.axes[:2]]
    assert "anomaly\ndent/0.png" in titles[0] and "good/3.png" in titles[1]


@pytest.fixture
def loader(tmp_path: Path) -> ImageLoader:
    for number, name in enumerate([*(f"good/{i}" for i in range(6)), "dent/0", "dent/1"]):
        file = tmp_path / "raw" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(number % 7).save(file)  # the last repeats the first
    return ImageLoader("folder", tmp_path / "raw", 10**6, tmp_path / "memory" / "files.parquet")


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that are read from now on; the table of what is known of them is none."""
    read, read_bytes = [], Path.read_bytes

    def count(path: Path) -> bytes:
        if path.suffix != ".parquet":
            read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", count)
    return read


def ingested(loader: ImageLoader) -> pd.DataFrame:
    listed = get_source(loader.dataset).list_samples(loader.folder)
    return split_normals(check_images(listed, loader, STRICT), STRICT)


def test_sheets_and_second_run_reads_no_image(loader, monkeypatch):
    samples = ingested(loader)
    repeated, audit, contact_sheet, duplicate_sheet = audit_samples(samples, loader)
    assert repeated["sample_id"].tolist() == ["dent/1.png", "good/0.png"]
    assert row(audit, "exact duplicates", "across labels") == (1, 2, 1)
    assert contact_sheet.axes[0].get_title() == "normal (6)"
    assert duplicate_sheet.axes[0].get_title() == "exact 1 (2 images): anomaly\ndent/1.png"
    read = files_read(monkeypatch)
    again = ingested(loader)
    audit_samples(again, loader)
    assert read == []
    pd.testing.assert_frame_equal(again, samples)


def test_hash_is_of_the_crop_and_each_file_is_read_once(loader, monkeypatch):
    wide = Image.new("L", (128, 48))
    wide.paste(picture(1), (0, 0))
    wide.paste(picture(2), (64, 0))
    wide.save(loader.folder / "wide.png")
    crops = ["0,0,64,48", "64,0,128,48", ""]
    listed = sample_table(sample("folder", "wide.png", 0, crop=crop) for crop in crops)
    read = files_read(monkeypatch)
    hashes = check_images(listed, loader, STRICT).set_index("crop")["dhash"]
    assert read == ["wide.png"]
    assert hashes.to_dict() == {crops[0]: dhash(picture(1)), crops[1]: dhash(picture(2)), "": dhash(wide)}


def real_samples(name: str, folder: str, tmp_path: Path) -> pd.DataFrame:
    if not (DATA / folder).is_dir():
        pytest.skip(f"the real images {DATA / folder} are not on this machine")
    return ingested(ImageLoader(name, DATA / folder, 10**8, tmp_path / "files.parquet"))


def test_real_repeats_and_leaks(tmp_path):
    samples = real_samples("brainmri", "brainmri", tmp_path)
    assert samples["split"].value_counts().to_dict() == {"anomaly": 155, "train": 73, "test": 25}
    audit = audited(samples)
    assert row(audit, "exact duplicates", "all")[2] == 25
    assert row(audit, "exact duplicates", "across train and test")[0] == 5
    assert (split_normals(samples, DROPPING)["problem"] == "").sum() == 228
    parts = real_samples("sdd", "kolektor_part", tmp_path)
    repeated = find_repeats(parts)
    assert set(repeated["item"][repeated["kind"] == "exact"]) == {"kos01"}  # kos26 repeats its images
    patches = real_samples("aitex", "aitex", tmp_path)
    audit = audited(patches)
    assert row(audit, "items", "across train and test")[0] == 139  # patches of one image
    assert audit["images"][audit["finding"] == "one colour"].sum() == 175
    assert row(audit, "exact duplicates", "all")[0] == 0
    with pytest.raises(InputError, match="all normal images to train show kos01"):
        split_normals(parts.assign(split=""), BY_ITEM)
    apart = audited(split_normals(patches.assign(split=""), BY_ITEM))
    for finding in ("items", "exact duplicates", "near duplicates"):
        assert row(apart, finding, "across train and test")[0] == 0


def test_pipelines_write_tables_and_sheets(tmp_path):
    for kind, numbers in {"good": [0, 1, 2, 3, 4, 5, 0, 1], "bad": [7, 8]}.items():
        (tmp_path / "raw" / kind).mkdir(parents=True)
        for name, number in enumerate(numbers):
            picture(number).save(tmp_path / "raw" / kind / f"{name}.png")
    for pipeline in ("audit", "datasets"):
        run(pipeline, tmp_path, dataset="folder", ingestion={"drop_duplicates": True, "split_by_item": True})
    reports = tmp_path / "out" / "08_reporting"
    audit = pd.read_csv(reports / "raw" / "audit.csv")
    assert row(audit, "exact duplicates", "all") == (2, 4, 2)
    assert row(audit, "exact duplicates", "across train and test") == (0, 0, 0)
    assert audit["images"][audit["finding"] == "dropped"].tolist() == [2]
    assert len(pd.read_csv(reports / "raw" / "repeated_images.csv")) == 4
    for name in ("contact_sheet", "duplicate_sheet"):
        with Image.open(reports / "raw" / f"{name}.png") as sheet:
            assert min(sheet.size) > 100
    assert "8 normal and 2 anomalous images" in (reports / "datasets.txt").read_text()
