import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.mastcam import SOURCE


def test_own_split_and_no_repeated_class(build):
    table = SOURCE.list_samples(build("mastcam")).set_index("path")
    assert table["split"].to_dict() == {
        "test_novel/drt/mcam4.npy": "",
        "test_novel/dump-pile/mcam4.npy": "",
        "test_novel/veins/mcam5.npy": "",
        "test_typical/mcam2_sol2_0.npy": "test",
        "train_typical/mcam1_sol1_0.npy": "train",
    }
    assert set(table["defect_class"]) == {"", "drt", "dump-pile", "veins"}


def test_frame_with_two_labels_is_one_group(build):
    table = SOURCE.list_samples(build("mastcam")).set_index("path")
    assert table["item"]["test_novel/drt/mcam4.npy"] == table["item"]["test_novel/dump-pile/mcam4.npy"]


def test_twelfth_class_is_named(build):
    folder = build("mastcam")
    source = folder / "test_novel" / "veins" / "mcam5.npy"
    for number in range(9):
        (folder / "test_novel" / f"class{number}").mkdir()
        (folder / "test_novel" / f"class{number}" / "mcam5.npy").write_bytes(source.read_bytes())
    with pytest.raises(InputError, match=r"has 12 classes, published are 11; look at class0, .*class8"):
        SOURCE.list_samples(folder)


def test_other_kind_of_image(build, draw):
    folder = build("mastcam")
    draw(folder / "train_typical" / "a.png")
    with pytest.raises(InputError, match=r"a\.png is not a \.npy array"):
        SOURCE.list_samples(folder)
