"""Everything that decides numbers gives the stored ones on small fixed inputs, or has another version.

What was computed is kept under keys that name versions, not code. So a rename recomputes nothing, and a change of the
numbers without a new version would mix old with new: this is where it shows. To store the numbers of a new version:
``PYTHONPATH=tests python tests/test_golden_numbers.py``.
"""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mpfm_kedro.backbones.extraction import to_pixels
from mpfm_kedro.backbones.networks import build_backbone
from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.detectors.mpfm.specification import SCORING_VERSION, STAGES
from mpfm_kedro.detectors.registry import baselines
from mpfm_kedro.evaluation.pixel_measures import PixelCounts
from mpfm_kedro.images import decoding, views
from mpfm_kedro.protocol.scores import PIXELS_VERSION
from random_networks import random_network
from small_mpfm import CPU, PRINTED, fit, make_data, make_rows, specify

FILE = Path(__file__).with_name("golden_numbers.json")
STEPS = 3


def mpfm(**changes: Any) -> tuple[list[int], np.ndarray]:
    """Sum and parts of a small MPFM, fitted and scored."""
    specification = specify(**changes)
    data, normals, anomalies = make_data()
    if not changes.get("trained", True):
        data = replace(data, anomalies=data.anomalies.take(np.arange(0)))
    versions = [*(STAGES[stage] for stage, _ in specification.values()), SCORING_VERSION]
    return versions, scores_of(load(fit(specification, data), CPU), normals, anomalies)


def baseline(detector: Any) -> tuple[list[int], np.ndarray]:
    """Scores of a baseline or reference, fitted by a few steps."""
    data, normals, anomalies = make_data()
    pseudo = make_rows(data.normals.pooled + 0.5, spot=2.0, seed=9)
    if not detector.supervised:
        data = replace(data, anomalies=data.anomalies.take(np.arange(0)))
    with torch.random.fork_rng(devices=[]):
        fitted = detector(STEPS).fit(replace(data, pseudo=pseudo), 0, Context(CPU))
    return [detector.version], scores_of(fitted, normals, anomalies)


def scores_of(detector: Any, *rows: Any) -> np.ndarray:
    found = [detector.score_samples(own.take(np.arange(5))) for own in rows]
    numbers = [
        np.asarray(value, float).ravel() for one in found for value in (one.score, one.parts) if value is not None
    ]
    return np.concatenate(numbers)


def colours() -> Image.Image:
    ramp = np.arange(64 * 48 * 3, dtype=np.uint32).reshape(48, 64, 3)
    return Image.fromarray((ramp * 7919 % 251).astype(np.uint8))


def decoded() -> tuple[list[int], np.ndarray]:
    """Pixels of a deep image that is scaled and cropped."""
    buffer = io.BytesIO()
    np.save(buffer, np.linspace(0, 4095, 48 * 64).reshape(48, 64).astype(np.uint16))
    image = decoding.decode("deep.npy", buffer.getvalue(), 10_000, "3,5,33,45", "0..4095")
    return [decoding.VERSION], np.asarray(image, float)[::9, ::9].ravel()


def augmented() -> tuple[list[int], np.ndarray]:
    """Pixels of some views."""
    found = [np.asarray(views.apply_view(colours(), view, "a hash"), float) for view in ("rot90", "hflip", "cutmix-0")]
    return [views.VERSION], np.concatenate([pixels[::11, ::11].ravel() for pixels in found])


def extracted(name: str) -> tuple[list[int], np.ndarray]:
    """Features of an image by a network with fixed random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = random_network(name).state_dict()
    backbone = build_backbone(name, weights, ["auto"], ["auto"])
    image = to_pixels(colours(), 56)[None]
    with torch.inference_mode():
        pooled, maps = backbone.features(image, ["mean", "max", "std"])
    numbers = [pooled.flatten()[::97], maps.float().flatten()[:: max(1, maps.numel() // 20)]]
    return [backbone.version], torch.cat(numbers).double().numpy()


def localised() -> tuple[list[int], np.ndarray]:
    """Measures of the pixels of made heat maps."""
    counts, rng = PixelCounts(), np.random.default_rng(0)
    for number in range(3):
        mask = np.zeros((20, 30), bool)
        mask[4:9, 5 + number : 12] = True
        counts.add((rng.normal(size=mask.shape) + mask).astype(np.float32), mask)
    return [PIXELS_VERSION], np.array(list(counts.measures().values()))


CASES: dict[str, Callable[[], tuple[list[int], np.ndarray]]] = {
    "MPFM": mpfm,
    "MPFM, step 0": partial(mpfm, step_0=True),
    "MPFM, no anomaly known": partial(mpfm, trained=False),
    "MPFM as printed": partial(mpfm, **PRINTED),
    **{detector.name: partial(baseline, detector) for detector in baselines()},
    "decoding": decoded,
    "views": augmented,
    **{name: partial(extracted, name) for name in ("resnet18", "dinov2_vits14", "timm/resnet10t")},
    "pixel measures": localised,
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_their_version(name: str):
    stored = json.loads(FILE.read_text())[name]
    versions, numbers = CASES[name]()
    assert versions == stored["versions"], f"{name}: a new version; store its numbers (see the top of this file)"
    expected = np.array(stored["numbers"])
    spread = max(1e-6, float(np.abs(expected).mean()))
    np.testing.assert_allclose(
        numbers, expected, rtol=1e-2, atol=1e-2 * spread, err_msg=f"{name}: raise its version, or find the bug"
    )


def test_all_numbers_are_of_something():
    assert set(json.loads(FILE.read_text())) == set(CASES)


if __name__ == "__main__":
    found = {name: case() for name, case in CASES.items()}
    content = {
        name: {"versions": versions, "numbers": [float(f"{x:.5g}") for x in numbers]}
        for name, (versions, numbers) in found.items()
    }
    FILE.write_text(json.dumps(content, indent=1) + "\n")
