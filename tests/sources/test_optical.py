import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.optical import SOURCE


def test_classes_are_pooled_and_kept_in_the_id(build):
    table = SOURCE.list_samples(build("optical"))
    assert (table["label"] == 0).sum() == 20
    assert (table["defect_class"] == "defect").sum() == 20
    row = table.set_index("sample_id").loc["Class10/Class10/Train/0002.PNG"]
    assert row["mask_path"] == "Class10/Class10/Train/Label/0002_label.PNG"
    assert row["label"] == 1


def test_layout_without_the_inner_class_folder(build):
    folder = build("optical")
    (folder / "Class4").rename(folder / "outer")
    (folder / "outer" / "Class4").rename(folder / "Class4")
    (folder / "outer").rmdir()
    table = SOURCE.list_samples(folder)
    assert len(table) == 40
    assert "Class4/Train/0001.PNG" in set(table["path"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "should begin"),
        (b"1\t0\t0001.PNG\t0\t0\n", "should begin"),
        (b"1\n1\t2\t0001.PNG\t0\t0\n", "line 2: expected"),
        (b"1\n1 0 0001.PNG 0 0\n", "line 2: expected"),
        (b"1\n1\t1\t0001.PNG\t1\t\n", "line 2: expected"),
        (b"\xff\xfe\x00", "cannot read"),
    ],
)
def test_unreadable_labels(build, text, message):
    folder = build("optical")
    file = folder / "Class1" / "Class1" / "Train" / "Label" / "Labels.txt"
    file.write_bytes(text)
    with pytest.raises(InputError, match=message) as raised:
        SOURCE.list_samples(folder)
    assert str(file) in str(raised.value)


def test_image_without_a_line_is_reported(build, draw, caplog):
    folder = build("optical")
    draw(folder / "Class1" / "Class1" / "Train" / "0009.PNG")
    assert len(SOURCE.list_samples(folder)) == 40
    assert "0009.png" in caplog.text
