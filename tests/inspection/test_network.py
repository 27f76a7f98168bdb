from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.network import DetectorNetwork, OnAxes, _smoothing, resize_bytes
from production_models import made_image, made_model

SIZES = [(48, 48), (64, 64), (1, 1), (1, 90), (200, 1), (97, 33), (33, 161), (300, 211)]


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


def test_smooths_as_heat_maps_are_smoothed():
    positions = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    found = OnAxes(_smoothing(5), _smoothing(7))(torch.from_numpy(positions))
    np.testing.assert_allclose(found.numpy(), smooth_maps(positions), atol=1e-5)


@pytest.mark.parametrize("backbones", [[("resnet18", 64)], [("resnet18", 64), ("squeezenet1_1", 75)]], ids=len)
def test_says_what_the_inspector_says(backbones: list[tuple[str, int]]):
    model = made_model(*backbones)
    inspector, network = Inspector(model, "cpu"), DetectorNetwork(model)
    assert len(model.detector["closed_form"].tensors["final.modes.weight"]) == 2
    rng = np.random.default_rng(1)
    modes = set()
    for place, size in enumerate(SIZES):
        images = [made_image(rng, size, defect=bool(place % 2)) for _ in range(3)]
        with torch.inference_mode():
            found = network(torch.from_numpy(np.stack([np.asarray(image) for image in images])))
        for i, expected in enumerate(inspector.predict_many(images)):
            assert found.score[i] == pytest.approx(expected.score, abs=1e-3)
            np.testing.assert_allclose(found.heat_map[i], expected.heat_map, atol=1e-3)
            np.testing.assert_allclose(found.parts[i], list(expected.parts.values()), rtol=1e-3, atol=1e-3)
            assert found.mode[i] == expected.mode
            modes.add(expected.mode)
    assert modes == {0, 1}


def test_a_model_that_knows_no_anomaly():
    model = made_model()
    without = {name: piece for name, piece in model.detector.items() if name != "heads"}
    alone = type(model)(model.card, without, model.backbones, model.calibration, model.gallery)
    image = made_image(np.random.default_rng(1))
    with torch.inference_mode():
        found = DetectorNetwork(alone)(torch.from_numpy(np.array(image))[None])
    assert found.score[0] == pytest.approx(Inspector(alone, "cpu").predict(image).score, abs=1e-3)
    assert found.parts[0, 1] == found.parts[0, 3] == 0
