"""MPFM as a detector: one branch per backbone, from stored fits to scores of stored features."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, FeatureRows
from mpfm_kedro.detectors.base import Artefact, Detector, Scores, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import PlainSum, SoftCalibration
from mpfm_kedro.detectors.mpfm.model import MPFM, MPFMOutput
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds


class MPFMDetector(Detector):
    """MPFM on one or several backbones, whose scores were weighed together: S is the sum over the branches."""

    def __init__(self, branches: Sequence[MPFM]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    @property
    def first(self) -> MPFM:
        """The branch of the first backbone."""
        branch = self.branches[0]
        assert isinstance(branch, MPFM)
        return branch

    def forward(self, features: Sequence[tuple[Tensor, Tensor]]) -> MPFMOutput:
        """Pooled statistics and maps of each backbone → scores and map; parts, mode and group are of the first.

        The maps of all backbones are added at the resolution of the first.
        """
        outputs = [branch(*values) for branch, values in zip(self.branches, features, strict=True)]
        first = outputs[0]
        if len(outputs) == 1:
            return first
        size = first.positions.shape[1:]
        maps = [nn.functional.interpolate(output.positions[:, None], size, mode="bilinear") for output in outputs]
        return first._replace(
            score=torch.stack([output.score for output in outputs]).sum(0),
            contributions=torch.stack([output.contributions for output in outputs]).sum(0),
            positions=torch.stack(maps).sum(0)[:, 0],
        )

    @torch.inference_mode()
    def inspect(self, rows: FeatureRows) -> MPFMOutput:
        """Predictions for stored features, on the CPU."""
        backbones, device = [rows.of_backbone(b) for b in range(len(self.branches))], self.first.closed_form.device
        batches = []
        for part in backbones[0].slices(IMAGES_IN_CACHE):
            stored = [(torch.from_numpy(rows.pooled[part]), rows.map_batch(part)) for rows in backbones]
            batches.append(self([(pooled.to(device), maps.to(device)) for pooled, maps in stored]))
        return MPFMOutput(*(torch.cat(values).cpu() for values in zip(*batches, strict=True)))

    def score_samples(self, rows: FeatureRows) -> Scores:
        """The sum, the four scores and the mode of each sample."""
        if not len(rows):
            return Scores(np.empty(0), np.empty((0, 4)), np.empty(0, dtype=int))
        output = self.inspect(rows)
        return Scores(output.score.double().numpy(), output.parts.double().numpy(), output.mode.numpy())

    def position_scores(self, rows: FeatureRows) -> np.ndarray:
        """The local part of the sum at each position."""
        return self.inspect(rows).positions.double().numpy()


@dataclass(frozen=True)
class FoldModel:
    """A detector fitted without some images: it predicts for them as the final one does for new images."""

    detector: MPFMDetector
    normals: np.ndarray  # positions of the normals that it was fitted without, among all
    anomalies: np.ndarray  # positions of these known anomalies and views


def load(fits: Mapping[str, Artefact], device: torch.device, number: int = FINAL) -> MPFMDetector:
    """The final detector from what is stored of its stages, or that of another round.

    Without the stage of training it has learned from no anomaly.
    """
    stored, branches = fits["calibration"], []
    for backbone in range(stored.details["n_backbones"]):
        tensors = stored.part(f"{backbone}.{number % stored.details['n_rounds']}")
        calibration = SoftCalibration(**tensors) if "knot" in tensors else PlainSum(**tensors)
        branches.append(MPFM.restore(fits, backbone, number, calibration))
    return MPFMDetector(branches).eval().requires_grad_(False).to(device)


def load_fold_models(
    fits: Mapping[str, Artefact], data: TrainingData, seed: int, device: torch.device
) -> list[FoldModel]:
    """The detectors of all rounds that leave something out; every normal is left out by one of them.

    Args:
        fits: of all stages.
        data: what it learned from.
        seed: of the fit.
        device: where the detectors shall be.
    """
    rounds = Rounds.of_folds(fits["prototypes"].tensors["fold"].numpy(), data, seed)
    return [
        FoldModel(load(fits, device, r), np.flatnonzero(~rounds.normals[r]), np.flatnonzero(~rounds.anomalies[r]))
        for r in range(len(rounds) - 1)
    ]


def keep_final(fits: Mapping[str, Artefact]) -> dict[str, Artefact]:
    """All that ``load`` reads and nothing else: no round of cross-fitting, no training image."""
    last = fits["prototypes"].details["n_rounds"] - 1
    of_last = re.compile(rf"standardiser\.|rounds\.{last}\.|\d+\.{last}\.")
    kept = {}
    for name, fit in fits.items():
        if name.startswith("training"):
            tensors = {key: value[FINAL:].clone() for key, value in fit.tensors.items()}
        else:
            tensors = {key: value for key, value in fit.tensors.items() if of_last.match(key)}
        kept[name] = Artefact(tensors, fit.details)
    return kept
