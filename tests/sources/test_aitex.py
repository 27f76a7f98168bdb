import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.aitex import SOURCE


def test_patches_classes_and_merged_masks(build, caplog):
    table = SOURCE.list_samples(build("aitex"))
    normal, marked = table[table["label"] == 0], table[table["label"] == 1].set_index("sample_id")
    assert normal["crop"].tolist() == ["0,0,256,256", "256,0,512,256"] * 2
    assert normal["item"].nunique() == 2
    assert (normal["mask_path"] == "").all()
    assert marked["defect_class"].to_dict() == {
        "Defect_images/0001_002_00.png#256,0,512,256": "broken_end",
        "Defect_images/0044_019_04.png#0,0,256,256": "fuzzyball",
        "Defect_images/0044_019_04.png#256,0,512,256": "fuzzyball",
        "Defect_images/0094_027_05.png#512,0,600,256": "knots",
    }
    two = marked.loc["Defect_images/0044_019_04.png#0,0,256,256"]
    assert two["mask_path"] == "Mask_images/0044_019_04_mask1.png|Mask_images/0044_019_04_mask2.png"
    assert two["item"] == "Defect_images/0044_019_04.png"
    assert "0100_025_08.png was published without a mask" in caplog.text
    assert "0106_010_03_mask.png is all black" in caplog.text


def test_at_most_sixteen_normal_patches(build, draw):
    folder = build("aitex")
    wide = draw(folder / "NODefect_images" / "wide" / "0003_000_05.png", (4400, 256))
    table = SOURCE.list_samples(folder)
    crops = table["crop"][table["path"] == wide.relative_to(folder).as_posix()]
    assert len(crops) == 16
    assert "3840,0,4096,256" in set(crops)


def test_broken_normal_image_keeps_its_sixteen_places(build):
    folder = build("aitex")
    file = folder / "NODefect_images" / "2306881-210020u" / "0001_000_05.png"
    file.write_bytes(b"no image")
    table = SOURCE.list_samples(folder)
    assert (table["path"] == file.relative_to(folder).as_posix()).sum() == 16


@pytest.mark.parametrize("name", ["0001_999_00", "nameless"])
def test_unknown_class_is_named(build, draw, name):
    folder = build("aitex")
    draw(folder / "Defect_images" / f"{name}.png", (512, 256))
    draw(folder / "Mask_images" / f"{name}_mask.png", (512, 256), ((0, 0),))
    with pytest.raises(InputError, match=rf"{name}\.png: the second field .*002 broken_end"):
        SOURCE.list_samples(folder)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("Mask_images/0001_002_00_mask.png", r"0001_002_00\.png has no mask 0001_002_00_mask\.png"),
        ("Defect_images/0001_002_00.png", r"0001_002_00_mask\.png has no image 0001_002_00\.png"),
    ],
)
def test_missing_file_is_named(build, missing, message):
    folder = build("aitex")
    (folder / missing).unlink()
    with pytest.raises(InputError, match=message):
        SOURCE.list_samples(folder)


def test_real(real, caplog):
    table = SOURCE.list_samples(real("aitex"))
    assert (table["label"] == 0).sum() == 141 * 16
    marked = table[table["label"] == 1]
    assert marked["defect_class"].value_counts().to_dict() == {
        **{"broken_pick": 63, "fuzzyball": 41, "weft_crack": 15, "nep": 14, "cut_selvage": 12, "broken_end": 10},
        **{"broken_yarn": 9, "weft_curling": 7, "crease": 6, "warp_ball": 5, "contamination": 2, "knots": 1},
    }
    assert (marked["mask_path"].str.count(r"\|") == marked["path"].str.contains("0044_019|0097_030")).all()
    assert "0100_025_08" in caplog.text and "0106_010_03" in caplog.text
