"""Forecasts of fits: measured times of this project's own fits, within a factor of 1.5."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kedro.config import OmegaConfigLoader

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.pieces import Specification
from mpfm_kedro.experiments.cache import ArtefactFile, Cache
from mpfm_kedro.experiments.forecast import EXPECTED, RECENT, expected_seconds, slowness
from mpfm_kedro.experiments.specifications import Ours
from mpfm_kedro.parameters import check_parameters


def mpfm(unseen_normals: int) -> Specification:
    loader = OmegaConfigLoader(str(Path(__file__).parents[2] / "conf"), base_env="base", default_run_env="base")
    parameters = check_parameters(loader["parameters"])
    ours = Ours(parameters.prototypes, parameters.repairs, parameters.training, parameters.backbone)
    return ours(prototypes={"unseen_normals": unseen_normals})


@pytest.mark.parametrize(
    ("unseen", "normals", "anomalies", "measured"),  # seconds on one core
    [
        (200, 1131, 40, {"closed_form": 25, "heads": 8, "calibrated": 1}),  # ELPV
        (200, 75, 40, {"closed_form": 6.7}),  # HeadCT: six fits of few normals
        # fit on ELPV, five fits: the wall times of a busy machine, scaled to the CPU time of the whole run
        (1000, 1508, 2860, {"closed_form": 79, "heads": 14, "calibrated": 92}),
    ],
)
def test_forecasts_are_right_within_a_factor(unseen, normals, anomalies, measured):
    specification = mpfm(unseen)
    for piece in specification.pieces:
        if piece.name in measured:
            expected = expected_seconds(piece, specification, normals, anomalies, 196)
            assert measured[piece.name] / 1.5 < expected < measured[piece.name] * 1.5


def fitted(cache: Cache, name: str, number: int, seconds: float, expected: float) -> ArtefactFile:
    file = cache.entry(name, str(number))
    file.save(Artefact({}, {"seconds": seconds, EXPECTED: expected}))
    os.utime(file.path, (number, number))
    return file


def test_forecasts_follow_how_long_earlier_pieces_took_here(tmp_path):
    cache = Cache(tmp_path)
    earlier = [
        fitted(cache, "closed_form", number, seconds, 10.0) for number, seconds in enumerate([30.0, 30.0, 900.0])
    ]
    fitted(cache, "heads", 9, 1.0, 10.0)
    assert slowness([*earlier, *earlier], tmp_path, ["heads"]) == 3, "one of them was held up"


def test_first_pieces_follow_the_newest_ones_of_earlier_runs(tmp_path):
    cache = Cache(tmp_path)
    assert slowness([], tmp_path, ["closed_form"]) == 1, "nothing was fitted yet"
    for number in range(2 * RECENT):
        fitted(cache, "closed_form", number, 50.0 if number < RECENT else 20.0, 10.0)
    fitted(cache, "heads", 99, 90.0, 10.0)
    cache.entry("closed_form", "older").save(Artefact({}, {"seconds": 9.0}))
    os.utime(cache.entry("closed_form", "older").path, (0, 0))
    assert slowness([], tmp_path, ["closed_form"]) == 2
