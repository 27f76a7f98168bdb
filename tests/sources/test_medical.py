"""Hyper-Kvasir, BrainMRI and HeadCT."""

import re

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import brainmri, headct, hyper_kvasir


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


def test_brainmri_repeated_copy_is_passed_over(build, draw, caplog):
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "cannot read"),
        (b"id, hemorrhage\n", "no line below its header"),
        (b"id, label\n0, 1\n", "expected are id and hemorrhage"),
        (b"id, hemorrhage\n0, yes\n", "a line '0, yes'"),
        (b"id, hemorrhage\n0, 0.5\n", "a line '0, 0.5'"),
        (b"id, hemorrhage\n0,\n", "a line '0, '"),
        (b"id, hemorrhage\n0, 1\n00, 1\n1, 0\n000, 0\n", "has the id"),
        (b"\xff\xfe\x00\x01", "cannot read"),
    ],
)
def test_headct_unreadable_labels(build, text, message):
    folder = build("headct")
    (folder / "labels.csv").write_bytes(text)
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        headct.SOURCE.list_samples(folder)
    assert str(folder / "labels.csv") in str(raised.value)


def test_headct_image_without_a_line_is_reported(build, draw, caplog):
    folder = build("headct")
    draw(folder / "head_ct" / "head_ct" / "007.png")
    assert len(headct.SOURCE.list_samples(folder)) == 3
    assert "007.png has no line" in caplog.text
