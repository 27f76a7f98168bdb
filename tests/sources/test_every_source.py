"""What holds for all sources of images that come from elsewhere."""

import re
import shutil

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import SOURCES, get_source
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES
from mpfm_kedro.sources.samples import LISTED
from sources.conftest import draw

NAMES = sorted(set(SOURCES) - {"synthetic"})  # its images are drawn, it has no layout of its own to check


def test_names_and_nearest_name():
    published = {"mvtec_ad", "optical", "sdd", "aitex", "elpv", "mastcam", "hyper_kvasir", "brainmri", "headct"}
    assert set(SOURCES) == published | {"folder", "synthetic"}
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


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(folder):
    for file in folder.iterdir():
        file.unlink()


def add_to(folder):
    draw(folder / "000.png")


def shrink(mask):
    draw(mask, (5, 5))


def spoil(mask):
    mask.write_bytes(b"no image")


def add_pair(image):
    draw(image, (512, 256))
    draw(image.parents[1] / f"Mask_images/{image.stem}_mask.png", (512, 256), ((0, 0),))


FOLDERS = {
    "mvtec_ad": ("train", "train/good", "test/good", "ground_truth", "ground_truth/hole"),
    "optical": ("Class3/Class3/Train", "Class3/Class3/Test/Label"),
    "aitex": ("NODefect_images", "Defect_images", "Mask_images"),
    "mastcam": ("train_typical", "test_typical", "test_novel"),
    "hyper_kvasir": ("", "anatomical-landmarks", "pathological-findings"),
    "brainmri": ("no", "yes"),
    "headct": ("head_ct",),
}
INSIDE = {"mvtec_ad": "carpet", "hyper_kvasir": "labeled-images/upper-gi-tract"}
MASKS = [
    ("mvtec_ad", "carpet/ground_truth/hole/000_mask.png"),
    ("optical", "Class2/Class2/Test/Label/0004_label.PNG"),
    ("sdd", "kos01/Part0_label.bmp"),
    ("aitex", "Mask_images/0001_002_00_mask.png"),
    ("aitex", "Mask_images/0044_019_04_mask2.png"),
]
DAMAGES = {  # what is done to a path, and what is said of it: where it is done
    (remove, r"{path}.* is missing"): [
        (name, f"{INSIDE.get(name, '')}/{folder}".strip("/")) for name, folders in FOLDERS.items() for folder in folders
    ],
    (empty, r"no image (directly )?in {path}"): [
        *(("mvtec_ad", "carpet/train/good"), ("mvtec_ad", "carpet/test/hole"), ("sdd", "kos02")),
        *(("mastcam", "test_novel/veins"), ("brainmri", "yes"), ("folder", "scratch")),
    ],
    (add_to, r"unknown folder {path}; expected are"): [
        *(("mvtec_ad", "carpets"), ("mvtec_ad", "carpet/train/bad"), ("mvtec_ad", "carpet/test/stain")),
        *(("optical", "Class11"), ("sdd", "good"), ("brainmri", "maybe")),
        ("hyper_kvasir", "labeled-images/upper-gi-tract/anatomical-landmarks/cecum"),
        ("hyper_kvasir", "labeled-images/upper-gi-tract/pathological-findings/polyps"),
    ],
    (shrink, r"{path} is 5x5, and its image"): MASKS,
    (spoil, r"cannot read the mask {path}"): MASKS,
    (draw, r"{path} has no mask; expected is .*001_mask\.png"): [("mvtec_ad", "carpet/test/hole/001.png")],
    (remove, r"Part0\.jpg has no mask Part0_label\.bmp"): [MASKS[2]],
    (remove, r"Part0_label\.bmp has no image Part0\.jpg"): [("sdd", "kos01/Part0.jpg")],
    (remove, r"0001_002_00\.png has no mask 0001_002_00_mask\.png"): [MASKS[3]],
    (remove, r"0001_002_00_mask\.png has no image 0001_002_00\.png"): [("aitex", "Defect_images/0001_002_00.png")],
    (add_pair, r"{path}: the second field .*002 broken_end"): [
        *(("aitex", "Defect_images/0001_999_00.png"), ("aitex", "Defect_images/nameless.png")),
    ],
    (draw, r"{path} is not a \.npy array"): [("mastcam", "train_typical/a.png")],
}


@pytest.mark.parametrize(
    ("damage", "message", "name", "path"), [(*key, *where) for key, wheres in DAMAGES.items() for where in wheres]
)
def test_a_damaged_copy_is_refused_by_what_is_wrong(build, damage, message, name, path):
    folder = build(name)
    damage(folder / path)
    with pytest.raises(InputError, match=message.replace("{path}", re.escape(str(folder / path)))):
        get_source(name).list_samples(folder)


LABELS = {
    ("elpv", "labels.csv"): {
        b"": "is empty",
        b"images/cell0001.png maybe mono": "cannot read",
        b"images/cell0001.png 2.0 mono": "outside 0 to 1",
        b"images/cell0001.png 1.0 thin": "cell types thin; allowed are mono and poly",
        b"\xff\xfe\x00\x01": "cannot read",
    },
    ("optical", "Class1/Class1/Train/Label/Labels.txt"): {
        b"": "should begin",
        b"1\t0\t0001.PNG\t0\t0\n": "should begin",
        b"1\n1\t2\t0001.PNG\t0\t0\n": "line 2: expected",
        b"1\n1 0 0001.PNG 0 0\n": "line 2: expected",
        b"1\n1\t1\t0001.PNG\t1\t\n": "line 2: expected",
        b"\xff\xfe\x00": "cannot read",
    },
    ("headct", "labels.csv"): {
        b"": "cannot read",
        b"id, hemorrhage\n": "no line below its header",
        b"id, label\n0, 1\n": "expected are id and hemorrhage",
        b"id, hemorrhage\n0, yes\n": "a line '0, yes'",
        b"id, hemorrhage\n0, 0.5\n": "a line '0, 0.5'",
        b"id, hemorrhage\n0,\n": "a line '0, '",
        b"id, hemorrhage\n0, 1\n00, 1\n1, 0\n000, 0\n": "has the id",
        b"\xff\xfe\x00\x01": "cannot read",
    },
}


@pytest.mark.parametrize(
    ("name", "path", "text", "message"), [(*key, *case) for key, cases in LABELS.items() for case in cases.items()]
)
def test_unreadable_labels_are_named(build, name, path, text, message):
    folder = build(name)
    (folder / path).write_bytes(text)
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        get_source(name).list_samples(folder)
    assert str(folder / path) in str(raised.value)
