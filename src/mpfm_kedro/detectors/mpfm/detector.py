"""MPFM as a detector: one branch per backbone, from stored pieces to scores of stored features."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, FeatureRows
from mpfm_kedro.detectors.base import Artefact, Scores, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import Calibration, PlainSum
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm
from mpfm_kedro.detectors.mpfm.model import MPFM, Inspection
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds
from mpfm_kedro.detectors.mpfm.specification import stage_name


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
        predictions = [branch(*values) for branch, values in zip(self.branches, features, strict=True)]
        first = predictions[0]
        if len(predictions) == 1:
            return first
        size = first.positions.shape[1:]
        maps = [nn.functional.interpolate(one.positions[:, None], size, mode="bilinear") for one in predictions]
        return first._replace(
            score=torch.stack([one.score for one in predictions]).sum(0),
            contributions=torch.stack([one.contributions for one in predictions]).sum(0),
            positions=torch.stack(maps).sum(0)[:, 0],
        )

    @torch.inference_mode()
    def inspect(self, rows: FeatureRows) -> Inspection:
        """Predictions for stored features, on the CPU."""
        backbones = [rows.of_backbone(number) for number in range(len(self.branches))]
        batches = []
        for part in backbones[0].slices(IMAGES_IN_CACHE):
            features = [(torch.from_numpy(own.pooled[part]), own.map_batch(part)) for own in backbones]
            batches.append(self([(pooled.to(self.device), maps.to(self.device)) for pooled, maps in features]))
        return Inspection(*(torch.cat(values).cpu() for values in zip(*batches, strict=True)))

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The sum, the four scores and the mode of each sample."""
        if not len(rows):
            return Scores(np.empty(0), np.empty((0, 4)), np.empty(0, dtype=int))
        prediction = self.inspect(rows)
        return Scores(prediction.score.double().numpy(), prediction.parts.double().numpy(), prediction.mode.numpy())

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """Where the score comes from: the local part of the sum at each position, (n, H', W')."""
        return self.inspect(rows).positions.double().numpy()


@dataclass(frozen=True)
class FoldModel:
    """A detector fitted without some images: its predictions for them are like those of the final one for new images.

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
    return _detector(pieces, FINAL, device)


def load_fold_models(
    pieces: Mapping[str, Artefact], data: TrainingData, seed: int, device: torch.device
) -> list[FoldModel]:
    """The detectors of all rounds that leave something out; every normal is left out by one of them.

    Args:
        pieces: of the fit.
        data: what it learned from.
        seed: of the fit.
        device: where the detectors shall be.
    """
    rounds = Rounds.of_folds(pieces["prototypes"].tensors["fold"].numpy(), data, seed)
    left_out = [[np.flatnonzero(~learns) for learns in table] for table in (rounds.normals, rounds.anomalies)]
    return [
        FoldModel(_detector(pieces, number, device), left_out[0][number], left_out[1][number])
        for number in range(len(rounds) - 1)
    ]


def keep_final(pieces: Mapping[str, Artefact]) -> dict[str, Artefact]:
    """The pieces with all that ``load`` reads and nothing else: no round of cross-fitting, no training image."""
    last = pieces["prototypes"].details["n_rounds"] - 1
    of_last = re.compile(rf"standardiser\.|rounds\.{last}\.|\d+\.{last}\.")
    kept = {}
    for name, piece in pieces.items():
        if name.startswith("training"):
            tensors = {key: value[FINAL:].clone() for key, value in piece.tensors.items()}
        else:
            tensors = {key: value for key, value in piece.tensors.items() if of_last.match(key)}
        kept[name] = Artefact(tensors, piece.details)
    return kept


def _detector(pieces: Mapping[str, Artefact], number: int, device: torch.device) -> MPFMDetector:
    """The detector of one round."""
    calibrations, branches = pieces["calibration"], []
    for backbone in range(calibrations.details["n_backbones"]):
        prototypes = pieces[stage_name("prototypes", backbone)]
        training = pieces.get(stage_name("training", backbone))
        trained = Modules.restore(training.tensors, training.details).of_round(number) if training else None
        calibration = calibrations.part(f"{backbone}.{number % calibrations.details['n_rounds']}")
        branches.append(
            MPFM(
                ClosedForm.restore(prototypes, number),
                trained,
                Calibration(**calibration) if "knot" in calibration else PlainSum(**calibration),
                prototypes.details["top_share"],
            )
        )
    return MPFMDetector(branches).eval().requires_grad_(False).to(device)
