"""MPFM as a detector: one branch per backbone, from stored pieces to scores of stored features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, FeatureRows
from mpfm_kedro.detectors.base import Artefact, Scores
from mpfm_kedro.detectors.mpfm.model import MPFM, Inspection
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds
from mpfm_kedro.detectors.mpfm.storage import unpack_calibration, unpack_closed_form, unpack_forms, unpack_modules
from mpfm_kedro.detectors.pieces import piece_name


class MPFMDetector(nn.Module):
    """MPFM on one or several backbones, whose scores were weighed together: S is the sum over the branches.

    Args:
        branches: MPFM on the features of each backbone.
    """

    def __init__(self, branches: Sequence[MPFM]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    @property
    def first(self) -> MPFM:
        """The branch of the first backbone."""
        branch = self.branches[0]
        assert isinstance(branch, MPFM)
        return branch

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.first.closed_form.device

    def forward(self, features: Sequence[tuple[Tensor, Tensor]]) -> Inspection:
        """Pooled statistics and maps of each backbone → scores and map; parts, mode and group are of the first.

        The maps of all backbones are added at the resolution of the first.
        """
        found = [branch(*own) for branch, own in zip(self.branches, features, strict=True)]
        if len(found) == 1:
            return found[0]
        maps = [own.positions[:, None] for own in found]
        resized = [nn.functional.interpolate(own, maps[0].shape[2:], mode="bilinear") for own in maps]
        return found[0]._replace(
            score=torch.stack([own.score for own in found]).sum(0),
            contributions=torch.stack([own.contributions for own in found]).sum(0),
            positions=torch.stack(resized).sum(0)[:, 0],
        )

    @torch.inference_mode()
    def inspect(self, rows: FeatureRows) -> Inspection:
        """What is said of stored features, on the CPU."""
        of_backbones = [rows.of_backbone(number) for number in range(len(self.branches))]
        found = []
        for part in of_backbones[0].slices(IMAGES_IN_CACHE):
            pooled = [torch.from_numpy(own.pooled[part]).to(self.device) for own in of_backbones]
            maps = [own.map_batch(part).to(self.device) for own in of_backbones]
            found.append(self(list(zip(pooled, maps, strict=True))))
        return Inspection(*(torch.cat(values).cpu() for values in zip(*found, strict=True)))

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The sum, the four scores and the mode of each sample."""
        if not len(rows):
            return Scores(np.empty(0), np.empty((0, 4)), np.empty(0, dtype=int))
        found = self.inspect(rows)
        return Scores(found.score.double().numpy(), found.parts.double().numpy(), found.mode.numpy())

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """Where the score comes from: the local part of the sum at each position, (n, H', W')."""
        return self.inspect(rows).positions.double().numpy()


@dataclass(frozen=True)
class FoldModel:
    """A detector that was fitted without some images: what it says of them, the final one will say of new ones.

    Args:
        detector: fitted without them.
        normals: positions of these normals among all.
        anomalies: positions of these known anomalies and views.
    """

    detector: MPFMDetector
    normals: np.ndarray
    anomalies: np.ndarray


def load(pieces: Mapping[str, Artefact], device: torch.device) -> MPFMDetector:
    """The final detector from its pieces; without training it has learned from no anomaly."""
    return _detector(pieces, None, device)


def load_fold_models(
    pieces: Mapping[str, Artefact], source: np.ndarray, seed: int, device: torch.device
) -> list[FoldModel]:
    """The detectors of all rounds that leave something out; every normal is left out by one of them.

    Args:
        pieces: of the fit.
        source: the known anomaly of each training row of anomalies (m,).
        seed: of the fit.
        device: where the detectors shall be.
    """
    rounds = Rounds.of_folds(pieces["prototypes"].tensors["fold"].numpy(), source, seed)
    return [
        FoldModel(
            _detector(pieces, number, device),
            np.flatnonzero(~rounds.normals[number]),
            np.flatnonzero(~rounds.anomalies[number]),
        )
        for number in range(len(rounds) - 1)
    ]


def keep_final(pieces: Mapping[str, Artefact]) -> dict[str, Artefact]:
    """The pieces with all that ``load`` reads and nothing else: no round of cross-fitting, no training image."""
    kept = dict(pieces)
    for name, piece in pieces.items():
        if name.startswith("training"):
            own = {key: value[FINAL:].clone() for key, value in piece.tensors.items()}
        else:
            last = piece.details["n_rounds"] - 1
            of_prototypes = ("standardiser.", f"rounds.{last}.")
            own = {
                key: value
                for key, value in piece.tensors.items()
                if (key.startswith(of_prototypes) if name.startswith("prototypes") else key.split(".")[1] == str(last))
            }
        kept[name] = Artefact(own, piece.details)
    return kept


def _detector(pieces: Mapping[str, Artefact], number: int | None, device: torch.device) -> MPFMDetector:
    """The detector of one round, by default of the last."""
    branches = []
    for backbone in range(pieces["calibration"].details["n_backbones"]):
        prototypes = pieces[piece_name("prototypes", backbone)]
        training = pieces.get(piece_name("training", backbone))
        branches.append(
            MPFM(
                unpack_closed_form(prototypes, number),
                None if training is None else unpack_modules(training).of_round(FINAL if number is None else number),
                unpack_calibration(pieces["calibration"], backbone, number),
                prototypes.details["top_share"],
                None if training is None else unpack_forms(training),
            )
        )
    return MPFMDetector(branches).eval().requires_grad_(False).to(device)
