"""MPFM as one module, from the features of images to four scores, their sum and a map; and as a detector.

A detector has one branch per backbone, and comes from what is stored of the stages.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import IMAGES_IN_CACHE, FeatureRows
from mpfm_kedro.detectors.base import Artefact, Detector, Scores, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import SCORES, PlainSum, SoftCalibration
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.groups import Groups
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.detectors.mpfm.patches import PatchPrototypes, mean_of_top, to_patches
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds
from mpfm_kedro.detectors.mpfm.specification import stage_name
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity
from mpfm_kedro.detectors.mpfm.whitening import Standardiser, Whitening


class MPFMOutput(NamedTuple):
    """Predictions for B images."""

    score: Tensor  # S (B,), higher for anomalies
    parts: Tensor  # S_g, S_a, S_r, S_n (B, 4)
    contributions: Tensor  # what each of them adds to S (B, 4)
    mode: Tensor  # (B,)
    group: Tensor  # the most probable group of normals (B,)
    positions: Tensor  # what M_a and M_r would add if all top positions were like this one, (B, H', W')


class MPFM(nn.Module):
    """Mixture Prototype Flow Matching on the features of one backbone, in one round of cross-fitting.

    The flow without a network is its start in closed form, step 0. Without trained modules it knows no anomaly. M_r
    averages a share of the positions.
    """

    trained: Modules | None  # the flow and the four modules, R = 1
    calibration: PlainSum | None  # from scores to their sum; None before it is fitted

    def __init__(self, top_share: float) -> None:
        super().__init__()
        self.standardiser = Standardiser()  # the same in all rounds
        self.groups = Groups()
        self.whitening = Whitening()
        self.patches = PatchPrototypes()
        self.flow = Flow(CoupledVelocity(), PrototypeMixture())
        self.trained = self.calibration = None
        self.top_share = top_share

    @classmethod
    def restore(
        cls, fits: Mapping[str, Artefact], backbone: int, number: int = FINAL, calibration: PlainSum | None = None
    ) -> Self:
        """One round of what the stages gave for one of the backbones."""
        start, training = fits[stage_name("prototypes", backbone)], fits.get(stage_name("training", backbone))
        prefix = f"rounds.{number % start.details['n_rounds']}."
        kept = {name: value for name, value in start.tensors.items() if name.startswith((prefix, "standardiser."))}
        model = cls(start.details["top_share"])
        model.load_state_dict({name.removeprefix(prefix): value for name, value in kept.items()})
        model.trained = Modules.restore(training, number) if training else None
        model.calibration = calibration
        return model.requires_grad_(False)

    @property
    def center(self) -> Tensor:
        """m (K, d), the whitened means of the groups."""
        assert isinstance(self.flow.velocity, CoupledVelocity)
        return self.flow.velocity.center[0]

    def enter(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As they enter the flow x = A z (n, d), p_k(z) (n, K) and the mode (n,) of standardised features (n, d)."""
        return self.whitening(z), *self.groups(z)

    def step_0(self, x: Tensor, p: Tensor) -> Tensor:
        """S_g at step 0 of images that have entered, (n, d) and (n, K) → (n,)."""
        return self.flow.score(self.flow.psi(x[None], p[None]))[0]

    @torch.no_grad()
    def mean_squares(self, rows: FeatureRows, mode: Tensor) -> Tensor:
        """Squared residuals of patches by channel, averaged over the top positions of each image, (n, C)."""
        squares = torch.empty(len(rows), rows.maps.shape[1])
        for part, maps in rows.map_batches(mode.device):
            squares[part] = mean_of_top(self.patches.squares(to_patches(maps), mode[part]), self.top_share).cpu()
        return squares

    def forward(self, pooled: Tensor, maps: Tensor) -> MPFMOutput:
        """Pooled statistics (B, d) and maps (B, C, H', W') → scores and map."""
        calibration = self.calibration
        assert calibration is not None
        z = self.standardiser.z(pooled)
        x, p, mode = self.enter(z)
        squares = self.patches.squares(to_patches(maps), mode)
        scores, local = self.raw_scores(z, x, p, mean_of_top(squares, self.top_share), maps)
        t = calibration(scores, p, mode)
        contributions = calibration.contributions(t, mode)
        at_positions = calibration(self._position_scores(squares, local), p, mode)
        return MPFMOutput(
            score=contributions.sum(1),
            parts=calibration.parts(t, mode),
            contributions=contributions,
            mode=mode,
            group=p.argmax(1),
            positions=calibration.contributions(at_positions, mode)[..., 1:3].sum(2).unflatten(1, maps.shape[2:]),
        )

    def raw_scores(
        self, z: Tensor, x: Tensor, p: Tensor, squares: Tensor, maps: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The six scores before calibration (B, S), and what M_a says of each position (B, X), if it was trained.

        They come from z (B, d), x and p as they enter the flow, squared residuals of patches (B, C) and maps.
        """
        g0, r0 = self.step_0(x, p), squares.sum(1)
        if self.trained is None:
            nothing = torch.zeros_like(g0)
            return torch.stack([g0, g0, nothing, r0, r0, nothing], 1), None
        modules = self.trained
        if "residual" in modules.printed:
            start = self.flow.psi(x[None], p[None])
            r0 = self.flow.prototypes.residual(start)[0].square().mean(1)
        psi = modules.flow.psi(x[None], p[None])
        g = modules.score_g(modules.flow.prototypes.squared_distances(psi))[0]
        r = modules.score_r(psi, squares[None])[0]
        a, local = modules.m_a(self.standardiser.patches(maps))
        return torch.stack([g0, g, a[0], r0, r, -modules.m_n(z)[0]], 1), local[0]

    @torch.no_grad()
    def raw_scores_of(self, rows: FeatureRows, x: Tensor, p: Tensor, squares: Tensor) -> Tensor:
        """The six scores of stored features as they enter the flow, in small batches, (n, S)."""
        z, scores = self.standardiser.z_of(rows), torch.empty(len(rows), len(SCORES))
        for part, maps in rows.map_batches(x.device):
            scores[part] = self.raw_scores(z[part], x[part], p[part], squares[part], maps)[0].cpu()
        return scores

    def _position_scores(self, squares: Tensor, local: Tensor | None) -> Tensor:
        """The six scores at each position (B, X, S), 0 where a score has none, from squared residuals (B, X, C)."""
        energy, modules = squares.sum(2), self.trained
        nothing = torch.zeros_like(energy)
        weighted = energy
        if modules is not None and "residual" in modules.printed:  # that of the image, which has no positions
            energy = weighted = nothing
        elif modules is not None:
            weighted = modules.r_logit(modules.m_r(squares[None]))[0]
        return torch.stack([nothing, nothing, nothing if local is None else local, energy, weighted, nothing], 2)


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
        backbones, device = [rows.of_backbone(b) for b in range(len(self.branches))], self.first.center.device
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
    calibrations = load_calibrations(fits["calibration"], number)
    branches = [MPFM.restore(fits, backbone, number, own) for backbone, own in enumerate(calibrations)]
    return MPFMDetector(branches).eval().requires_grad_(False).to(device)


def load_calibrations(stored: Artefact, number: int = FINAL) -> list[PlainSum]:
    """The calibration of each backbone."""
    names = [f"{backbone}.{number % stored.details['n_rounds']}" for backbone in range(stored.details["n_backbones"])]
    return [SoftCalibration(**own) if "knot" in own else PlainSum(**own) for own in map(stored.part, names)]


def load_fold_models(
    fits: Mapping[str, Artefact], data: TrainingData, seed: int, device: torch.device
) -> list[FoldModel]:
    """The detectors of all rounds that leave out some of the data of the fit; every normal by one of them."""
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
