"""One range of values for all deep images of a dataset."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.decoding import parse_range
from mpfm_kedro.images.ranges import check_range, find_range, fitting_range


def table(*rows: tuple[str, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["deep", "lowest", "highest"])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("", 0, 255)], ""),
        ([("integer", 0, 90), ("", 0, 255)], "0..255"),
        ([("integer", 3, 255)], "0..255"),
        ([("integer", 3, 256)], "0..1023"),
        ([("integer", 0, 9), ("integer", 100, 4095)], "0..4095"),
        ([("integer", 0, 4096)], "0..16383"),
        ([("integer", 0, 65535)], "0..65535"),
        ([("float", 0, 0.2), ("float", 0.1, 1.005)], "0..1"),
        ([("float", -1, 0.9)], "-1..1"),
        ([("float", 0, 254.7)], "0..255"),
    ],
)
def test_usual_range_is_found(rows, expected):
    assert find_range(table(*rows), "auto") == expected


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([("integer", -3, 100)], "-3 to 100"),
        ([("integer", 0, 70000)], "0 to 70000"),
        ([("integer", 0, 3)], "0 to 3"),
        ([("integer", 20000, 20765)], "20000 to 20765"),
        ([("float", 0.50, 0.55)], "0.5 to 0.55"),
        ([("float", 0, 4095)], "0 to 4095"),
        ([("float", -1000, 3000)], "-1000 to 3000"),
        ([("float", 0, 0.0625 * 0.99)], "0 to 0.061875"),
        ([("float", 0, 1), ("integer", 0, 4095)], "0 to 4095"),
    ],
)
def test_unusual_values_are_an_error_with_the_numbers(rows, values):
    with pytest.raises(InputError, match=f"values from {values} were found: set ingestion.pixel_range"):
        find_range(table(*rows), "auto")


@given(lowest=st.integers(0, 65535), highest=st.integers(4096, 65535))
def test_range_of_integers_covers_them_and_is_no_larger_than_four_times_the_highest(lowest, highest):
    low, high = parse_range(fitting_range(min(lowest, highest), highest, "integer"))
    assert low == 0 and highest <= high <= 4 * highest
    check_range(f"{low}..{high}", lowest=0, highest=highest)
