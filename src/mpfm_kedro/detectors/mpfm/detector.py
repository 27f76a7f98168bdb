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
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, top_mean, unpack, unpack_final
from mpfm_kedro.detectors.mpfm.flow import Flow, load_flow
from mpfm_kedro.detectors.mpfm.learned import FINAL, Heads, unpack_heads
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
        return self.inspect(rows)[0]

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """Where the score comes from: the local part of the sum at each position, (n, H', W')."""
        return self.inspect(rows)[1]

    def inspect(self, rows: FeatureRows) -> tuple[Scores, np.ndarray]:
        """Scores and position scores at once."""
        closed_form, heads = self.closed_form, self.heads
        likelihood, mode = closed_form.likelihood(rows)
        energy = closed_form.energy(rows, mode)
        g = likelihood if self.flow is None else self.flow.score(closed_form.standardiser.z(rows))
        a, learned, normality = np.zeros(len(rows)), torch.zeros_like(energy), np.zeros(len(rows))
        if heads is not None:
            of_heads, maps = heads.top_positions.inspect(rows, closed_form.device)
            a, learned, normality = of_heads[:, 0], maps[..., 0], heads.normality(rows)[:, 0]
        parts = np.stack([g, a, top_mean(energy, closed_form.top_share), normality], axis=1)
        scores = Scores(self.calibration.fuse(parts, mode.numpy()), parts, mode.numpy())
        return scores, self.calibration.fuse_positions(learned.double().numpy(), energy.double().numpy(), mode.numpy())


class SideBySide:
    """MPFM on several backbones, whose scores were weighed together: S is the sum over the backbones."""

    def __init__(self, detectors: list[FittedMPFM]) -> None:
        self.detectors = detectors

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The fused score; the four scores and the mode are those of the first backbone."""
        return self.inspect(rows)[0]

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """The sum of the backbones' maps, at the resolution of the first, (n, H', W')."""
        return self.inspect(rows)[1]

    def inspect(self, rows: FeatureRows) -> tuple[Scores, np.ndarray]:
        """Scores and position scores at once."""
        found = [each.inspect(rows.of_backbone(number)) for number, each in enumerate(self.detectors)]
        scores, maps = [each for each, _ in found], [torch.from_numpy(each)[:, None] for _, each in found]
        resized = [nn.functional.interpolate(own, maps[0].shape[2:], mode="bilinear") for own in maps]
        fused = replace(scores[0], score=np.sum([each.score for each in scores], axis=0))
        return fused, torch.stack(resized).sum(0)[:, 0].numpy()


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


def keep_final(pieces: Mapping[str, Artefact]) -> dict[str, Artefact]:
    """The pieces with all that ``load`` reads and nothing else: no detector of cross-fitting, no evidence."""
    kept = dict(pieces)
    for name, piece in pieces.items():
        if name.startswith("closed_form"):
            kept[name] = Artefact(
                {key: value for key, value in piece.tensors.items() if key.startswith("final.")}, piece.details
            )
        elif name.startswith("heads"):
            own = {key: value for key, value in piece.tensors.items() if key[:2] in ("a.", "n.")}
            kept[name] = Artefact({key: value[FINAL:].clone() for key, value in own.items()}, piece.details)
    return kept
