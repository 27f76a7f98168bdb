"""MPFM as a detector: its pieces as plain data are in ``specification``, here they become scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Scores
from mpfm_kedro.detectors.mpfm.calibration import Calibration, unpack_calibrations
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, unpack, unpack_final
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
            learned = self.heads.score(rows, self.closed_form.device)[:, 0]
        g = closed.g if self.flow is None else self.flow.score(self.closed_form.standardiser.z(rows))
        parts = np.stack([g, learned[:, 0], closed.r, learned[:, 1]], axis=1)
        return Scores(self.calibration.fuse(parts, closed.mode), parts, closed.mode)

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """Where the score comes from: the local part of the sum at each position, (n, H', W')."""
        _, mode = self.closed_form.likelihood(rows)
        energy = self.closed_form.energy(rows, mode).double().numpy()
        learned = np.zeros_like(energy)
        if self.heads is not None:
            top_positions = self.heads.top_positions
            for part, maps in rows.map_batches():
                scores = top_positions.position_scores(maps.to(self.closed_form.device))
                learned[part] = scores.cpu().numpy().reshape(learned[part].shape)
        return self.calibration.fuse_positions(learned, energy, mode.numpy())


class SideBySide:
    """MPFM on several backbones, whose scores were weighed together: S is the sum over the backbones."""

    def __init__(self, detectors: list[FittedMPFM]) -> None:
        self.detectors = detectors

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The fused score; the four scores and the mode are those of the first backbone."""
        scores = [each.score_samples(rows.of_backbone(number)) for number, each in enumerate(self.detectors)]
        return replace(scores[0], score=np.sum([each.score for each in scores], axis=0))

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """The sum of the backbones' maps, at the resolution of the first, (n, H', W')."""
        maps = [each.position_scores(rows.of_backbone(number)) for number, each in enumerate(self.detectors)]
        size = maps[0].shape[1:]
        resized = [nn.functional.interpolate(torch.from_numpy(own)[:, None], size, mode="bilinear") for own in maps]
        return torch.stack(resized).sum(0)[:, 0].numpy()


@dataclass(frozen=True)
class LeftOut:
    """A detector that was fitted without some images: what it says of them, the final one will say of new ones.

    Args:
        detector: fitted without them.
        normals: positions of these normals among all.
        anomalies: positions of these known anomalies and views.
    """

    detector: FittedMPFM | SideBySide
    normals: np.ndarray
    anomalies: np.ndarray


def load(pieces: Mapping[str, Artefact], device: torch.device) -> FittedMPFM | SideBySide:
    """The fitted detector from its pieces; without heads it has learned from no anomaly."""
    found = []
    for number, calibration in enumerate(unpack_calibrations(pieces["calibrated"])):
        closed_form = unpack_final(pieces[piece_name("closed_form", number)]).to(device)
        head = pieces.get(piece_name("heads", number))
        heads = None if head is None else unpack_heads(head, closed_form.standardiser).head()
        flow = load_flow(pieces["flow"], closed_form.modes) if "flow" in pieces and number == 0 else None
        found.append(FittedMPFM(closed_form, flow, heads, calibration))
    return found[0] if len(found) == 1 else SideBySide(found)


def load_left_out(pieces: Mapping[str, Artefact], device: torch.device) -> list[LeftOut]:
    """The detectors of all rounds of cross-fitting; every normal of the folds that are left out is in one of them."""
    calibrations = unpack_calibrations(pieces["calibrated"])
    closed_forms = [unpack(pieces[piece_name("closed_form", number)]) for number in range(len(calibrations))]
    heads = [
        unpack_heads(pieces[piece_name("heads", number)], closed.final.standardiser)
        for number, closed in enumerate(closed_forms)
    ]
    learns = pieces["heads"].tensors["learns.anomalies"].numpy()
    n_rounds, n_without = len(learns) - 1, len(closed_forms[0].without)
    found = []
    for number in range(n_rounds):
        fold = number % n_without
        detectors = [
            FittedMPFM(closed.without[fold].to(device), None, own.head(number), calibration)
            for closed, own, calibration in zip(closed_forms, heads, calibrations, strict=True)
        ]
        rounds_of_fold = range(fold, n_rounds, n_without)
        normals = closed_forms[0].positions(fold)[rounds_of_fold.index(number) :: len(rounds_of_fold)]
        detector = detectors[0] if len(detectors) == 1 else SideBySide(detectors)
        found.append(LeftOut(detector, normals, np.flatnonzero(~learns[number])))
    return found
