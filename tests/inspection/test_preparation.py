"""Whatever a user gives that is no image is named in one line."""

import numpy as np
import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.preparation import read_image


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (None, "NoneType is neither a path nor an array nor a PIL image"),
        ([[0, 1], [1, 0]], "list is neither a path"),
        (np.zeros((4, 4, 7), np.uint8), r"shape \(4, 4, 7\)"),
        (np.zeros((4, 4), np.uint16), "eight bits"),
        (np.full((4, 4), np.nan), "not finite"),
    ],
)
def test_what_is_no_image_is_named(image, problem):
    with pytest.raises(InputError, match=f"The image cannot be used: .*{problem}"):
        read_image(image, "")
