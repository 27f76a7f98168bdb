import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.sdd import SOURCE


def test_three_strips_of_every_image(build):
    table = SOURCE.list_samples(build("sdd"))
    assert table["crop"].tolist() == ["0,0,6,3", "0,3,6,6", "0,6,6,10", "0,0,6,3", "0,3,6,7", "0,7,6,11"]
    assert table["label"].tolist() == [0, 0, 1, 0, 0, 0]
    assert table["item"].tolist() == ["kos01"] * 3 + ["kos02"] * 3
    assert set(table["mask_path"]) == {"kos01/Part0_label.bmp", "kos02/Part3_label.bmp"}
    assert table["sample_id"][2] == "kos01/Part0.jpg#0,6,6,10"


def test_item_nested_twice_keeps_its_group(build):
    folder = build("sdd")
    (folder / "kos01").rename(folder / "inner")
    (folder / "kos01").mkdir()
    (folder / "inner").rename(folder / "kos01" / "kos01")
    assert SOURCE.list_samples(folder)["item"].tolist() == ["kos01"] * 3 + ["kos02"] * 3


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("Part0_label.bmp", r"Part0\.jpg has no mask Part0_label\.bmp"),
        ("Part0.jpg", r"Part0_label\.bmp has no image Part0\.jpg"),
    ],
)
def test_missing_file_of_a_pair_is_named(build, missing, message):
    folder = build("sdd")
    (folder / "kos01" / missing).unlink()
    with pytest.raises(InputError, match=message):
        SOURCE.list_samples(folder)


def test_real_part(real):
    table = SOURCE.list_samples(real("kolektor_part"))
    assert len(table) == 18
    marked = table[table["label"] == 1]
    assert marked["path"].tolist() == ["kos01/Part5.jpg", "kos02/Part6.jpg", "kos26/Part5.jpg"]
    assert marked["crop"].tolist() == ["0,423,500,846", "0,420,500,840", "0,423,500,846"]
