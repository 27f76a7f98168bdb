"""Which values of deep images are black and white: one range for a whole dataset."""

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.decoding import parse_range
from mpfm_kedro.parameters import AUTO

BITS = (8, 10, 12, 14, 16)
FLOAT_RANGES = ((0, 1), (-1, 1), (0, 255))
OVERSHOOT = 0.01  # share of the range: resampling goes a little beyond black and white
LEAST_SHARE = 1 / 16  # of the range that values should reach: a 12-bit image in 16 bits reaches this


def find_range(checked: pd.DataFrame, wanted: str) -> str:
    """The range ("low..high") of the deep ones of these images (lowest, highest, deep), "" if there are none.

    ``wanted`` is ``auto`` or a range. What does not fit the values is an error.
    """
    deep = checked[checked["deep"] != ""]
    if deep.empty:
        return ""
    lowest, highest = float(deep["lowest"].min()), float(deep["highest"].max())
    pixel_range = wanted
    if wanted == AUTO:
        kinds = sorted(deep["deep"].unique())
        if len(kinds) > 1:
            raise InputError(f"Some images hold integers and others floating point, {_ask(lowest, highest)}")
        pixel_range = fitting_range(lowest, highest, kinds[0])
    check_range(pixel_range, lowest, highest)
    return pixel_range


def fitting_range(lowest: float, highest: float, kind: str) -> str:
    """The range that images with these values usually have.

    Integers: 0 to the most that 8, 10, 12, 14 or 16 bits hold. Floating point: 0..1, -1..1 or 0..255.
    """
    slack = 0.0 if kind == "integer" else OVERSHOOT
    usual = [(0, 2**bits - 1) for bits in BITS] if kind == "integer" else FLOAT_RANGES
    for low, high in usual:
        if _covers(low, high, lowest, highest, slack):
            return f"{low}..{high}"
    raise InputError(f"Images of {kind} values in no usual range, {_ask(lowest, highest)}")


def check_range(pixel_range: str, lowest: float, highest: float) -> None:
    """Raise where values lie outside of the range, or use so little of it that all images would be of one grey."""
    low, high = parse_range(pixel_range)
    if not _covers(low, high, lowest, highest, OVERSHOOT):
        raise InputError(f"Values outside of the range {pixel_range}, {_ask(lowest, highest)}")
    if highest - low < LEAST_SHARE * (high - low):
        raise InputError(f"Images would be nearly black in the range {pixel_range}, {_ask(lowest, highest)}")
    if highest - lowest < LEAST_SHARE * (high - low):
        raise InputError(f"Images would be nearly of one grey in the range {pixel_range}, {_ask(lowest, highest)}")


def _covers(low: float, high: float, lowest: float, highest: float, slack: float) -> bool:
    beyond = slack * (high - low)
    return low - beyond <= lowest and highest <= high + beyond


def _ask(lowest: float, highest: float) -> str:
    found = f"values from {lowest:g} to {highest:g} were found"
    return f"{found}: set ingestion.pixel_range to the values of black and white, such as 0..4095 of a 12-bit camera"
