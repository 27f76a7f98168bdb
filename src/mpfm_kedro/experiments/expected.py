"""How long fits take on the reference machine, by the size of the data; ``rates`` says how this machine compares."""

from __future__ import annotations

import math

from mpfm_kedro.detectors.pieces import Piece, Specification

# where the seconds of pieces were measured: ELPV at 224 px, ten known anomalies with three more views of each
REFERENCE_POSITIONS, REFERENCE_NORMALS, REFERENCE_ANOMALIES, REFERENCE_FITS = 196, 1131, 40, 2
FIXED_SHARE = 0.025  # of a closed form's seconds there, which few normals take as well
SCORING_SHARE = {"heads": 0.0005, "calibrated": 0.3}  # of a piece's seconds there, which grows with what it scores
FOLDS = 5
EXPECTED = "expected_seconds"


def expected_seconds(
    piece: Piece, specification: Specification, n_normals: int, n_anomalies: int, n_positions: int
) -> float:
    """About how long fitting a piece takes on one core.

    A closed form is fitted to all normals, and once more without each of some folds. Training takes its number of steps
    whatever the number of images; what rests on all known anomalies scores them by the models without a fold.

    Args:
        piece: to fit.
        specification: that it belongs to.
        n_normals: learned from.
        n_anomalies: learned from, views included.
        n_positions: of a map.
    """
    left_out = folds_left_out(specification, n_normals)
    size = n_positions / REFERENCE_POSITIONS
    if piece.supervised:
        share = SCORING_SHARE.get(piece.name.partition("_")[0], 0.0)
        return piece.seconds * size * (1 - share + share * left_out * n_anomalies / REFERENCE_ANOMALIES)
    fits = (1 + left_out) / REFERENCE_FITS
    return piece.seconds * size * fits * (FIXED_SHARE + (1 - FIXED_SHARE) * n_normals / REFERENCE_NORMALS)


def folds_left_out(specification: Specification, n_normals: int) -> int:
    """How many folds of the normals are left out in turn, until they have as many normals as calibration asks for."""
    unseen = max((piece.parameters.get("unseen_normals", 0) for piece in specification.pieces), default=0)
    return min(FOLDS, n_normals, max(1, math.ceil(unseen * FOLDS / max(1, n_normals))))
