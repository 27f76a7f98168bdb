"""What is particular to each published dataset."""

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import aitex, brainmri, elpv, headct, hyper_kvasir, mastcam, mvtec_ad, optical, sdd


def test_mvtec_ad_has_the_published_counts():
    counts = mvtec_ad.SOURCE.counts.values()
    assert sum(count.train for count in counts) == 3629
    assert sum(count.test for count in counts) == 467
    assert sum(count.anomalies for count in counts) == 1258
    assert sum(len(classes.split()) for _, classes in mvtec_ad.CATEGORIES.values()) == 73


def test_mvtec_ad_categories_have_their_split_classes_and_masks(build):
    table = mvtec_ad.SOURCE.list_samples(build("mvtec_ad"))
    normal = table[table["label"] == 0]
    sizes = normal.groupby(["category", "split"]).size().to_dict()
    assert sizes == {
        ("carpet", "test"): 1,
        ("carpet", "train"): 2,
        ("toothbrush", "test"): 1,
        ("toothbrush", "train"): 2,
    }
    anomalies = table[table["label"] == 1].set_index("path")
    assert anomalies["defect_class"].to_dict() == {
        "carpet/test/color/000.png": "color",
        "carpet/test/hole/000.png": "hole",
        "toothbrush/test/defective/000.png": "defective",
    }
    assert anomalies["mask_path"]["carpet/test/hole/000.png"] == "carpet/ground_truth/hole/000_mask.png"
    assert (anomalies["split"] == "").all()


def test_optical_classes_are_pooled_and_kept_in_the_id(build):
    table = optical.SOURCE.list_samples(build("optical"))
    assert (table["label"] == 0).sum() == 20
    assert (table["defect_class"] == "defect").sum() == 20
    row = table.set_index("sample_id").loc["Class10/Class10/Train/0002.PNG"]
    assert row["mask_path"] == "Class10/Class10/Train/Label/0002_label.PNG"
    assert row["label"] == 1


def test_optical_without_the_inner_class_folder(build):
    folder = build("optical")
    (folder / "Class4").rename(folder / "outer")
    (folder / "outer" / "Class4").rename(folder / "Class4")
    (folder / "outer").rmdir()
    table = optical.SOURCE.list_samples(folder)
    assert len(table) == 40
    assert "Class4/Train/0001.PNG" in set(table["path"])


def test_optical_image_without_a_line_is_reported(build, draw, caplog):
    folder = build("optical")
    draw(folder / "Class1" / "Class1" / "Train" / "0009.PNG")
    assert len(optical.SOURCE.list_samples(folder)) == 40
    assert "0009.png" in caplog.text


def test_sdd_has_three_strips_of_every_image(build):
    table = sdd.SOURCE.list_samples(build("sdd"))
    assert table["crop"].tolist() == ["0,0,6,3", "0,3,6,6", "0,6,6,10", "0,0,6,3", "0,3,6,7", "0,7,6,11"]
    assert table["label"].tolist() == [0, 0, 1, 0, 0, 0]
    assert table["item"].tolist() == ["kos01"] * 3 + ["kos02"] * 3
    assert set(table["mask_path"]) == {"kos01/Part0_label.bmp", "kos02/Part3_label.bmp"}
    assert table["sample_id"][2] == "kos01/Part0.jpg#0,6,6,10"


def test_sdd_item_nested_twice_keeps_its_group(build):
    folder = build("sdd")
    (folder / "kos01").rename(folder / "inner")
    (folder / "kos01").mkdir()
    (folder / "inner").rename(folder / "kos01" / "kos01")
    assert sdd.SOURCE.list_samples(folder)["item"].tolist() == ["kos01"] * 3 + ["kos02"] * 3


def test_sdd_real_part(real):
    table = sdd.SOURCE.list_samples(real("kolektor_part"))
    assert len(table) == 18
    marked = table[table["label"] == 1]
    assert marked["path"].tolist() == ["kos01/Part5.jpg", "kos02/Part6.jpg", "kos26/Part5.jpg"]
    assert marked["crop"].tolist() == ["0,423,500,846", "0,420,500,840", "0,423,500,846"]


def test_aitex_patches_classes_and_merged_masks(build, caplog):
    table = aitex.SOURCE.list_samples(build("aitex"))
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


def test_aitex_has_at_most_sixteen_normal_patches(build, draw):
    folder = build("aitex")
    wide = draw(folder / "NODefect_images" / "wide" / "0003_000_05.png", (4400, 256))
    table = aitex.SOURCE.list_samples(folder)
    crops = table["crop"][table["path"] == wide.relative_to(folder).as_posix()]
    assert len(crops) == 16
    assert "3840,0,4096,256" in set(crops)


def test_aitex_broken_normal_image_keeps_its_sixteen_places(build):
    folder = build("aitex")
    file = folder / "NODefect_images" / "2306881-210020u" / "0001_000_05.png"
    file.write_bytes(b"no image")
    table = aitex.SOURCE.list_samples(folder)
    assert (table["path"] == file.relative_to(folder).as_posix()).sum() == 16


def test_aitex_real(real, caplog):
    table = aitex.SOURCE.list_samples(real("aitex"))
    assert (table["label"] == 0).sum() == 141 * 16
    marked = table[table["label"] == 1]
    assert marked["defect_class"].value_counts().to_dict() == {
        **{"broken_pick": 63, "fuzzyball": 41, "weft_crack": 15, "nep": 14, "cut_selvage": 12, "broken_end": 10},
        **{"broken_yarn": 9, "weft_curling": 7, "crease": 6, "warp_ball": 5, "contamination": 2, "knots": 1},
    }
    assert (marked["mask_path"].str.count(r"\|") == marked["path"].str.contains("0044_019|0097_030")).all()
    assert "0100_025_08" in caplog.text and "0106_010_03" in caplog.text


def test_elpv_uncertain_cells_are_dropped(build):
    table = elpv.SOURCE.list_samples(build("elpv")).set_index("path")
    assert table["label"].to_dict() == {
        "images/cell0001.png": 0,
        "images/cell0002.png": 1,
        "images/cell0004.png": 1,
    }
    assert table["defect_class"].tolist() == ["", "poly", "mono"]


def test_elpv_package(tmp_path):
    pytest.importorskip("elpv_dataset", reason="the package elpv-dataset is not installed")
    table = elpv.SOURCE.list_samples(elpv.SOURCE.locate(tmp_path))
    assert table["defect_class"].value_counts().to_dict() == {"": 1131 + 377, "poly": 402, "mono": 313}


def test_elpv_neither_copy_nor_package(tmp_path, monkeypatch):
    monkeypatch.setattr("mpfm_kedro.sources.elpv.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install elpv-dataset"):
        elpv.SOURCE.locate(tmp_path)


def test_mastcam_own_split_and_no_repeated_class(build):
    table = mastcam.SOURCE.list_samples(build("mastcam")).set_index("path")
    assert table["split"].to_dict() == {
        "test_novel/drt/mcam4.npy": "",
        "test_novel/dump-pile/mcam4.npy": "",
        "test_novel/veins/mcam5.npy": "",
        "test_typical/mcam2_sol2_0.npy": "test",
        "train_typical/mcam1_sol1_0.npy": "train",
    }
    assert set(table["defect_class"]) == {"", "drt", "dump-pile", "veins"}


def test_mastcam_frame_with_two_labels_is_one_group(build):
    table = mastcam.SOURCE.list_samples(build("mastcam")).set_index("path")
    assert table["item"]["test_novel/drt/mcam4.npy"] == table["item"]["test_novel/dump-pile/mcam4.npy"]


def test_mastcam_twelfth_class_is_named(build):
    folder = build("mastcam")
    source = folder / "test_novel" / "veins" / "mcam5.npy"
    for number in range(9):
        (folder / "test_novel" / f"class{number}").mkdir()
        (folder / "test_novel" / f"class{number}" / "mcam5.npy").write_bytes(source.read_bytes())
    with pytest.raises(InputError, match=r"has 12 classes, published are 11; look at class0, .*class8"):
        mastcam.SOURCE.list_samples(folder)


def test_hyper_kvasir_uses_the_upper_tract_only(build):
    table = hyper_kvasir.SOURCE.list_samples(build("hyper_kvasir"))
    assert len(table) == 7
    assert set(table["defect_class"]) == {"", *hyper_kvasir.FINDINGS}
    assert not table["path"].str.contains("lower").any()
    assert sum(hyper_kvasir.SOURCE.counts[""].anomalies.values()) == 757


def test_brainmri_takes_every_suffix(build):
    table = brainmri.SOURCE.list_samples(build("brainmri"))
    assert table["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert table["path"].tolist()[:3] == ["no/1 no.jpeg", "no/N3.JPG", "no/No11.jpg"]


def test_brainmri_repeated_copy_is_skipped(build, draw, caplog):
    folder = build("brainmri")
    for name in ("no/1 no.jpeg", "yes/Y1.jpg"):
        draw(folder / "brain_tumor_dataset" / name)
    assert len(brainmri.SOURCE.list_samples(folder)) == 6
    assert "brain_tumor_dataset repeats" in caplog.text


def test_brainmri_real(real):
    table = brainmri.SOURCE.list_samples(real("brainmri"))
    assert table["defect_class"].value_counts().to_dict() == {"tumor": 155, "": 98}


def test_headct_labels_with_blanks(build):
    table = headct.SOURCE.list_samples(build("headct")).set_index("path")
    assert table["label"].to_dict() == {
        "head_ct/head_ct/000.png": 1,
        "head_ct/head_ct/001.png": 1,
        "head_ct/head_ct/002.png": 0,
    }
    assert table["defect_class"].tolist() == ["hemorrhage", "hemorrhage", ""]


def test_headct_image_without_a_line_is_reported(build, draw, caplog):
    folder = build("headct")
    draw(folder / "head_ct" / "head_ct" / "007.png")
    assert len(headct.SOURCE.list_samples(folder)) == 3
    assert "007.png has no line" in caplog.text
