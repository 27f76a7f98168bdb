"""Which images show one item: named by a pattern or a table, or near copies."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.items import join_images, list_items, match_items
from mpfm_kedro.parameters import AUTO
from mpfm_kedro.sources.samples import sample, sample_table

PATTERN = r"(part\d+)_"


def samples(names: list[str], contents: str, hashes: list[int]) -> pd.DataFrame:
    """Images of these contents, whose perceptual hashes are equal or far apart."""
    rng = np.random.default_rng(0)
    distinct = [bits.tobytes().hex() for bits in rng.integers(0, 256, (20, 32), dtype=np.uint8)]
    table = sample_table(sample("folder", name, 0) for name in names)
    return table.assign(content_hash=list(contents), problem="", dhash=[distinct[number] for number in hashes])


def test_the_first_group_is_the_item_and_what_does_not_match_is_said(caplog):
    paths = pd.Series(["good/part1_a.png", "good/part1_b.png", "dent/part2_a.png", "good/other.png"])
    assert match_items(paths, PATTERN).fillna("").tolist() == ["part1", "part1", "part2", ""]
    assert "does not match 1 of 4 paths, each of which is an item, for example good/other.png" in caplog.text


@pytest.mark.parametrize(("paths", "matched"), [(["a/1.png", "a/2.png"], 0), (["part1_.png", "2.png", "3.png"], 1)])
def test_a_pattern_that_matches_few_paths_is_refused_with_examples(paths, matched):
    with pytest.raises(InputError, match=rf"matches {matched} of {len(paths)}.*for example.* {paths[-1]}"):
        match_items(pd.Series(paths), PATTERN)


def test_near_and_equal_images_are_one_item_where_nothing_names_them(caplog):
    table = samples(list("abcdefg"), "1123456", [0, 0, 0, 1, 2, 3, 4])
    with caplog.at_level(logging.INFO):
        joined = join_images(table, AUTO, by_item=True)
    assert joined["item"].tolist() == list("aaadefg")
    assert "5 items in 7 images: only near copies are one item" in caplog.text
    assert join_images(table, "(.*)", by_item=True)["item"].tolist() == list("aacdefg")
    assert join_images(table, AUTO, by_item=False)["item"].tolist() == list("aacdefg")


def test_where_most_images_are_alike_only_equal_ones_are_one_item(caplog):
    table = samples(list("abcde"), "11234", [0, 0, 0, 0, 1])
    with caplog.at_level(logging.INFO):
        assert join_images(table, AUTO, by_item=True)["item"].tolist() == list("aacde")
    assert "4 items in 5 images: most images are alike" in caplog.text


def test_one_category_whose_images_are_all_alike_falls_back_to_equal_ones(caplog):
    table = samples(list("abcdefghijk"), "1123456789X", [0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6])
    table["category"] = ["plain"] * 4 + ["other"] * 7
    with caplog.at_level(logging.INFO):
        joined = join_images(table, AUTO, by_item=True)
    assert joined["item"].tolist() == [*"aacd", *"eeghijk"]
    assert "9 items in 11 images: most images of plain are alike, so only equal ones are one item there" in caplog.text


def test_a_table_names_items_and_near_copies_stay_apart(tmp_path: Path, caplog):
    (tmp_path / "items.csv").write_text("\ufeffpath,item\n./a,part1\nc,part1\nb,007\ng,\n", encoding="utf-8")
    table = list_items(samples(list("abcdefg"), "1234567", [0, 0, 0, 1, 2, 3, 4]), tmp_path, AUTO)
    assert "items.csv has no item for 4 of 7 images" in caplog.text
    items = ["part1", "007", "part1", *"defg"]
    assert table["item"].tolist() == items
    with caplog.at_level(logging.INFO):
        joined = join_images(table, AUTO, by_item=True)
    assert "6 items in 7 images: named by items.csv" in caplog.text
    assert joined["item"].tolist() == items
    learned = pd.concat([joined, samples(["learned"], "8", [0])], ignore_index=True)
    assert join_images(learned, AUTO, by_item=True)["item"].tolist() == [*items, "learned"]


@pytest.mark.parametrize(
    ("content", "pattern", "message"),
    [
        ("path,item\na,1\nnowhere.png,2\nelse.png,3\n", AUTO, "items.csv names nowhere.png, not an image"),
        ("path,item\na,1\n", PATTERN, "'ingestion.item_pattern' = .*items.csv names the items"),
        ("path;item\na;1\n", AUTO, "no column 'path'; .* found are path;item"),
        ("path,item\na,1\n./a,2\n", AUTO, "names a twice"),
        ("", AUTO, "items.csv cannot be read"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(content: str, pattern: str, message: str, tmp_path: Path):
    (tmp_path / "items.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        list_items(samples(list("ab"), "12", [0, 1]), tmp_path, pattern)
