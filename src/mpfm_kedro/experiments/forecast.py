"""How long fits take: from seconds measured elsewhere, the size of the data, and how long fits took here before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from mpfm_kedro.detectors.pieces import Piece, Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import SUFFIX, ArtefactFile

# where the seconds of pieces were measured: ELPV at 224 px, ten known anomalies with three more views of each
REFERENCE_POSITIONS, REFERENCE_NORMALS, REFERENCE_ANOMALIES, REFERENCE_FITS = 196, 1131, 40, 2
FIXED_SHARE = 0.025  # of a closed form's seconds there, which few normals take as well
SCORING_SHARE = {"heads": 0.003, "calibrated": 0.3}  # of a piece's seconds there, which grows with what it scores
FOLDS = 5
RECENT = 5  # earlier fits that say how fast this machine is
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


def slowness(earlier: Iterable[ArtefactFile], folder: Path, names: Iterable[str]) -> float:
    """How much longer than expected fits took here: this machine may be slower, or busy; 1 if there were none.

    Args:
        earlier: the pieces that the coming ones build on; they were fitted just now.
        folder: of earlier pieces, where there are none of those.
        names: of the coming pieces.
    """
    fitted = list(earlier) or [file for name in sorted(set(names)) for file in _newest(folder, name)]
    ratios = [ratio for file in {file.path: file for file in fitted}.values() if (ratio := _ratio(file))]
    return median(ratios) if ratios else 1.0  # one fit may have been held up


def _newest(folder: Path, name: str) -> list[ArtefactFile]:
    files = sorted(folder.glob(f"{name}-*{SUFFIX}"), key=lambda file: file.stat().st_mtime)
    return [ArtefactFile(file) for file in files[-RECENT:]]


def _ratio(file: ArtefactFile) -> float | None:
    """Seconds that a fit took for each that was expected; None where it does not say."""
    try:
        details = file.details
    except InputError:  # deleted just now, or damaged
        return None
    return details["seconds"] / details[EXPECTED] if details.get(EXPECTED) else None
