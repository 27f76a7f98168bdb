"""Forecasts of fits: measured times of this project's own fits, within a factor of 1.5."""

from __future__ import annotations

from pathlib import Path

import pytest
from kedro.config import OmegaConfigLoader

from mpfm_kedro.detectors.pieces import Specification
from mpfm_kedro.detectors.registry import baselines
from mpfm_kedro.experiments.expected import expected_seconds
from mpfm_kedro.experiments.specifications import Ours
from mpfm_kedro.parameters import check_parameters


def mpfm(unseen_normals: int) -> Specification:
    loader = OmegaConfigLoader(str(Path(__file__).parents[2] / "conf"), base_env="base", default_run_env="base")
    parameters = check_parameters(loader["parameters"])
    ours = Ours(parameters.prototypes, parameters.repairs, parameters.training, parameters.backbone)
    return ours(prototypes={"unseen_normals": unseen_normals})


@pytest.mark.parametrize(
    ("unseen", "normals", "anomalies", "measured"),  # processor seconds of one core
    [
        (200, 1131, 40, {"closed_form": 10.6, "heads": 9.2, "calibrated": 0.12}),  # ELPV
        (200, 75, 40, {"closed_form": 3.3, "heads": 6.5}),  # HeadCT: six fits of few normals
        (1000, 1131, 2860, {"closed_form": 31.4, "heads": 13.3, "calibrated": 14.8}),  # ELPV, all anomalies, six fits
    ],
)
def test_forecasts_are_right_within_a_factor(unseen, normals, anomalies, measured):
    specification = mpfm(unseen)
    for piece in specification.pieces:
        if piece.name in measured:
            expected = expected_seconds(piece, specification, normals, anomalies, 196)
            assert measured[piece.name] / 1.5 < expected < measured[piece.name] * 1.5


def test_forecasts_of_other_methods_are_right_within_a_factor():
    """ELPV, two fits at once on two cores, beside other work: what is fitted first scales the forecast of the rest."""
    measured = {"AHL": 27.6, "DevNet": 10.4, "DPDL": 15.4, "DRA": 22.1, "FLOS": 10.4, "MLEP": 6.3, "SAOE": 10.2}
    measured |= {"Mahalanobis": 1.5, "mixture of modes": 2.6, "kNN-5": 0.1, "patch-kNN": 2.1}
    for detector in baselines():
        if detector.name in measured:
            assert measured[detector.name] / 2 < detector.seconds < measured[detector.name] * 2, detector.name
