import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.elpv import SOURCE


def test_uncertain_cells_are_dropped(build):
    table = SOURCE.list_samples(build("elpv")).set_index("path")
    assert table["label"].to_dict() == {
        "images/cell0001.png": 0,
        "images/cell0002.png": 1,
        "images/cell0004.png": 1,
    }
    assert table["defect_class"].tolist() == ["", "poly", "mono"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"images/cell0001.png maybe mono", "cannot read"),
        (b"images/cell0001.png 2.0 mono", "outside 0 to 1"),
        (b"images/cell0001.png 1.0 thin", "cell types thin; allowed are mono and poly"),
        (b"\xff\xfe\x00\x01", "cannot read"),
    ],
)
def test_unreadable_labels(build, text, message):
    folder = build("elpv")
    (folder / "labels.csv").write_bytes(text)
    with pytest.raises(InputError, match=message) as raised:
        SOURCE.list_samples(folder)
    assert str(folder / "labels.csv") in str(raised.value)


def test_package(tmp_path):
    pytest.importorskip("elpv_dataset", reason="the package elpv-dataset is not installed")
    table = SOURCE.list_samples(SOURCE.locate(tmp_path))
    assert table["defect_class"].value_counts().to_dict() == {"": 1131 + 377, "poly": 402, "mono": 313}


def test_neither_copy_nor_package(tmp_path, monkeypatch):
    monkeypatch.setattr("mpfm_kedro.sources.elpv.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install elpv-dataset"):
        SOURCE.locate(tmp_path)
