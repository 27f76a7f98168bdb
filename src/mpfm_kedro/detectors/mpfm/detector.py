"""MPFM as a detector: its pieces as plain data are in ``specification``, here they become scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Scores
from mpfm_kedro.detectors.mpfm.calibration import Calibration, unpack_calibrations
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, closed_form_start, unpack_final
from mpfm_kedro.detectors.mpfm.flow import Flow, load_flow
from mpfm_kedro.detectors.mpfm.learned import Heads, unpack_heads
from mpfm_kedro.detectors.pieces import piece_name


class FittedMPFM:
    """A closed form, a trained flow if there is one, heads if an anomaly was known, and their calibration."""

    def __init__(
        self, closed_form: ClosedForm, flow: Flow | None, heads: Heads | None, calibration: Calibration
    ) -> None:
        self.closed_form = closed_form
        self.flow = flow
        self.heads = heads
        self.calibration = calibration

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The fused score, the four scores and the mode of each sample."""
        closed = self.closed_form.score(rows)
        learned = np.zeros((len(rows), 2))
        if self.heads is not None:
            learned = self.heads.score(rows, self.closed_form.modes.mean.device)[:, 0]
        g = closed.g if self.flow is None else self.flow.score(self.closed_form.standardiser.z(rows))
        parts = np.stack([g, learned[:, 0], closed.r, learned[:, 1]], axis=1)
        return Scores(self.calibration.fuse(parts, closed.mode), parts, closed.mode)

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """The energy of each position, (n, H', W')."""
        start = closed_form_start(self.closed_form.modes, self.closed_form.standardiser.z(rows))
        return self.closed_form.energy(rows, start.log_prob.argmax(1)).numpy()


class SideBySide:
    """MPFM on several backbones, whose scores were weighed together: S is the sum over the backbones."""

    def __init__(self, detectors: list[FittedMPFM]) -> None:
        self.detectors = detectors

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The fused score; the four scores and the mode are those of the first backbone."""
        scores = [each.score_samples(rows.of_backbone(number)) for number, each in enumerate(self.detectors)]
        return replace(scores[0], score=np.sum([each.score for each in scores], axis=0))

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """Those of the first backbone, (n, H', W')."""
        return self.detectors[0].position_scores(rows.of_backbone(0))


def load(pieces: Mapping[str, Artefact], device: torch.device) -> FittedMPFM | SideBySide:
    """The fitted detector from its pieces; without heads it has learned from no anomaly."""
    found = []
    for number, calibration in enumerate(unpack_calibrations(pieces["calibrated"])):
        closed_form = unpack_final(pieces[piece_name("closed_form", number)]).to(device)
        head = pieces.get(piece_name("heads", number))
        heads = None if head is None else unpack_heads(head, closed_form.standardiser).final()
        flow = load_flow(pieces["flow"], closed_form.modes) if "flow" in pieces and number == 0 else None
        found.append(FittedMPFM(closed_form, flow, heads, calibration))
    return found[0] if len(found) == 1 else SideBySide(found)
