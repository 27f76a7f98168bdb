import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from mpfm_kedro.inspection.resizing import resize_bytes


@settings(deadline=None, max_examples=60)
@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    side=st.integers(1, 100),
    seed=st.integers(0, 99),
    extreme=st.booleans(),
)
@example(width=60, height=180, side=64, seed=0, extreme=False)  # tall: the height first
@example(width=128, height=128, side=64, seed=0, extreme=True)
def test_resizes_to_the_bytes_of_pil(width: int, height: int, side: int, seed: int, extreme: bool):
    pixels = np.random.default_rng(seed).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
    pixels = np.where(pixels > 127, 255, 0).astype(np.uint8) if extreme else pixels
    found = resize_bytes(torch.from_numpy(pixels), side).permute(0, 2, 3, 1).numpy()
    for own, image in zip(found, pixels, strict=True):
        resized = Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(own, np.asarray(resized))
