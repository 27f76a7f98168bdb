"""MPFM as a detector: its pieces as plain data are in ``specification``, here they become scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Scores
from mpfm_kedro.detectors.mpfm.assembly import assemble, score_rows
from mpfm_kedro.detectors.mpfm.calibration import Calibration, unpack
from mpfm_kedro.detectors.mpfm.model import MPFM


class FittedMPFM:
    """A model with its calibration."""

    def __init__(self, model: MPFM, calibration: Calibration) -> None:
        self.model = model
        self.calibration = calibration

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The fused score, the four scores and the mode of each sample."""
        parts, mode = score_rows(self.model, rows)
        return Scores(self.calibration.fuse(parts, mode), parts, mode)


def load(pieces: Mapping[str, Artefact], device: torch.device) -> FittedMPFM:
    """The fitted detector from its pieces; without a trained piece it is MPFM at 0 iterations."""
    return FittedMPFM(assemble(pieces, device), unpack(pieces["calibrated"]))
