"""What holds for all sources of images that come from elsewhere."""

import re
import shutil

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import SOURCES, get_source
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES
from mpfm_kedro.sources.samples import LISTED

NAMES = sorted(set(SOURCES) - {"synthetic"})  # its images are drawn, it has no layout of its own to check


def test_names_and_nearest_name():
    expected = {
        "mvtec_ad",
        "optical",
        "sdd",
        "aitex",
        "elpv",
        "mastcam",
        "hyper_kvasir",
        "brainmri",
        "headct",
        "folder",
        "synthetic",
    }
    assert set(SOURCES) == expected
    with pytest.raises(InputError, match="did you mean 'mastcam'"):
        get_source("mastcan")


@pytest.mark.parametrize("name", NAMES)
def test_table(build, name):
    source, folder = get_source(name), build(name)
    assert source.name == name
    assert source.locate(folder.parent) == folder
    table = source.list_samples(folder)
    assert list(table.columns) == LISTED
    assert table["sample_id"].is_monotonic_increasing and table["sample_id"].is_unique
    assert set(table["dataset"]) == {name}
    assert set(table["label"]) == {0, 1}
    assert ((table["defect_class"] == "") == (table["label"] == 0)).all()
    assert all((folder / path).is_file() for path in table["path"])
    masks = [mask for masks in table["mask_path"] if masks for mask in masks.split("|")]
    assert all((folder / mask).is_file() for mask in masks)
    splits = set(table["split"][table["label"] == 0])
    assert splits == ({"train", "test"} if source.split == "own" else {""})
    assert (table["item"] != "").all()
    if source.counts is not None:
        assert set(table["category"]) <= set(source.counts)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrapping", ["{name}", "archive", "archive/{name}"])
def test_wrapped_folder_is_found(build, name, wrapping):
    folder = build(name)
    before = get_source(name).list_samples(folder)
    inner = folder / wrapping.format(name=name)
    shutil.move(folder, folder.with_name("moved"))
    inner.parent.mkdir(parents=True)
    shutil.move(folder.with_name("moved"), inner)
    located = get_source(name).locate(folder.parent)
    assert located == inner
    assert get_source(name).list_samples(located).equals(before)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "elpv"])
def test_case_of_suffixes_does_not_matter(build, name):
    folder = build(name)
    before = get_source(name).list_samples(folder)
    for file in [file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES]:
        file.rename(file.with_suffix(file.suffix.swapcase()))
    after = get_source(name).list_samples(folder)
    assert [path.lower() for path in after["path"]] == [path.lower() for path in before["path"]]
    assert after["label"].tolist() == before["label"].tolist()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("elpv", "folder")])
def test_missing_dataset_names_the_folder(tmp_path, name):
    with pytest.raises(InputError, match=re.escape(str(tmp_path / name))):
        get_source(name).locate(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_folder_with_something_else_names_what_is_expected(tmp_path, name):
    (tmp_path / name / "one").mkdir(parents=True)
    (tmp_path / name / "two").mkdir()
    with pytest.raises(InputError, match="should hold"):
        get_source(name).locate(tmp_path)


def folders_that_must_be_there() -> list[tuple[str, str]]:
    return [
        ("mvtec_ad", "carpet/train"),
        ("mvtec_ad", "carpet/train/good"),
        ("mvtec_ad", "carpet/test/good"),
        ("mvtec_ad", "carpet/ground_truth"),
        ("mvtec_ad", "carpet/ground_truth/hole"),
        ("optical", "Class3/Class3/Train"),
        ("optical", "Class3/Class3/Test/Label"),
        ("aitex", "NODefect_images"),
        ("aitex", "Defect_images"),
        ("aitex", "Mask_images"),
        ("mastcam", "train_typical"),
        ("mastcam", "test_typical"),
        ("mastcam", "test_novel"),
        ("hyper_kvasir", "labeled-images/upper-gi-tract"),
        ("hyper_kvasir", "labeled-images/upper-gi-tract/anatomical-landmarks"),
        ("hyper_kvasir", "labeled-images/upper-gi-tract/pathological-findings"),
        ("brainmri", "no"),
        ("brainmri", "yes"),
        ("headct", "head_ct"),
    ]


@pytest.mark.parametrize(("name", "missing"), folders_that_must_be_there())
def test_missing_folder_is_named(build, name, missing):
    folder = build(name)
    shutil.rmtree(folder / missing)
    with pytest.raises(InputError, match=rf"{re.escape(str(folder / missing))}.* is missing"):
        get_source(name).list_samples(folder)


@pytest.mark.parametrize(
    ("name", "emptied"),
    [
        ("mvtec_ad", "carpet/train/good"),
        ("mvtec_ad", "carpet/test/hole"),
        ("sdd", "kos02"),
        ("mastcam", "test_novel/veins"),
        ("brainmri", "yes"),
        ("folder", "scratch"),
    ],
)
def test_empty_folder_is_named(build, name, emptied):
    folder = build(name)
    for file in (folder / emptied).iterdir():
        file.unlink()
    with pytest.raises(InputError, match=rf"no image (directly )?in {re.escape(str(folder / emptied))}"):
        get_source(name).list_samples(folder)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("mvtec_ad", "carpets"),
        ("mvtec_ad", "carpet/train/bad"),
        ("mvtec_ad", "carpet/test/stain"),
        ("optical", "Class11"),
        ("sdd", "good"),
        ("hyper_kvasir", "labeled-images/upper-gi-tract/anatomical-landmarks/cecum"),
        ("hyper_kvasir", "labeled-images/upper-gi-tract/pathological-findings/polyps"),
        ("brainmri", "maybe"),
    ],
)
def test_extra_class_folder_is_named(build, draw, name, extra):
    folder = build(name)
    draw(folder / extra / "000.png")
    with pytest.raises(InputError, match=rf"unknown folder {re.escape(str(folder / extra))}; expected are"):
        get_source(name).list_samples(folder)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("mvtec_ad", "carpet/ground_truth/hole/000_mask.png"),
        ("optical", "Class2/Class2/Test/Label/0004_label.PNG"),
        ("sdd", "kos01/Part0_label.bmp"),
        ("aitex", "Mask_images/0001_002_00_mask.png"),
        ("aitex", "Mask_images/0044_019_04_mask2.png"),
    ],
)
def test_masks_must_be_readable_and_of_the_size_of_their_image(build, draw, name, mask):
    folder = build(name)
    draw(folder / mask, (5, 5))
    with pytest.raises(InputError, match=rf"{re.escape(str(folder / mask))} is 5x5, and its image"):
        get_source(name).list_samples(folder)
    (folder / mask).write_bytes(b"no image")
    with pytest.raises(InputError, match=rf"cannot read the mask {re.escape(str(folder / mask))}"):
        get_source(name).list_samples(folder)
