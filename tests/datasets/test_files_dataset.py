"""Files are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mpfm_kedro.atomic import replacing
from mpfm_kedro.datasets.tables import MetricsDataset, TableDataset, TextDataset
from mpfm_kedro.errors import InputError


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("cannot be written")


TABLE = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
GOOD_AND_BAD = {
    "csv": (TableDataset, TABLE, pd.DataFrame({"a": [1, Unprintable()]})),
    "json": (MetricsDataset, {"a": [1, 2]}, {"a": [1, 2], "b": object()}),
    "text": (TextDataset, "whole", 7),
}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("kind", GOOD_AND_BAD)
def test_what_is_saved_is_loaded_and_nothing_else_is_left(kind, tmp_path):
    dataset, good, _ = GOOD_AND_BAD[kind]
    entry = dataset(filepath=str(tmp_path / "new" / f"result.{kind}"))
    entry.save(good)
    loaded = entry.load()
    assert (loaded[TABLE.columns].equals(good)) if kind in ("csv", "parquet") else loaded == good
    assert names(tmp_path / "new") == [f"result.{kind}"]


@pytest.mark.parametrize("kind", GOOD_AND_BAD)
def test_failed_save_leaves_the_old_file_whole(kind, tmp_path):
    dataset, good, bad = GOOD_AND_BAD[kind]
    entry = dataset(filepath=str(tmp_path / f"result.{kind}"))
    entry.save(good)
    before = (tmp_path / f"result.{kind}").read_bytes()
    with pytest.raises(Exception, match=r".+"):
        entry.save(bad)
    assert (tmp_path / f"result.{kind}").read_bytes() == before
    assert names(tmp_path) == [f"result.{kind}"]
    entry.save(good)
    assert entry.exists()


@pytest.mark.parametrize("kind", GOOD_AND_BAD)
def test_a_missing_file_is_named(kind, tmp_path):
    with pytest.raises(InputError, match=r"result\.\w+ is missing; first run"):
        GOOD_AND_BAD[kind][0](filepath=str(tmp_path / f"result.{kind}")).load()


def test_a_damaged_table_is_named_and_a_name_of_digits_stays_text(tmp_path):
    table = TableDataset(filepath=str(tmp_path / "runs.csv"))
    table.save(pd.DataFrame({"known_class": ["007", ""], "auc": [0.5, None]}))
    loaded = table.load()
    assert loaded["known_class"].tolist() == ["007", ""] and loaded["auc"].isna().tolist() == [False, True]
    for content in (b"", b'a,b\n1,2,3\n"', b"\xff\xfe\xff"):
        (tmp_path / "runs.csv").write_bytes(content)
        with pytest.raises(InputError, match=r"runs\.csv is damaged .*rerun the full pipeline"):
            table.load()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_interruption_half_way_through_leaves_the_old_file(interruption, tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(interruption), replacing(file) as partial:
        partial.write_text("ne")
        raise interruption
    assert file.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("below", ["table.csv", "deeper/table.csv"])
def test_parent_that_is_a_file_is_named(below, tmp_path):
    (tmp_path / "occupied").write_text("a file")
    target = tmp_path / "occupied" / below
    with pytest.raises(InputError, match="Cannot write") as raised, replacing(target) as partial:
        partial.write_text("x")
    assert str(target) in str(raised.value)


def test_target_that_is_a_folder_is_named(tmp_path):
    (tmp_path / "table.csv").mkdir()
    with pytest.raises(InputError) as raised:
        TableDataset(filepath=str(tmp_path / "table.csv")).save(TABLE)
    assert str(tmp_path / "table.csv") in str(raised.value)
    assert names(tmp_path) == ["table.csv"]
