"""MPFM as one module: from the features of images to four scores, their sum and a map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.calibration import SCORES, PlainSum
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.detectors.mpfm.patches import mean_of_top, to_patches
from mpfm_kedro.detectors.mpfm.rounds import FINAL
from mpfm_kedro.detectors.mpfm.specification import stage_name


class MPFMOutput(NamedTuple):
    """Predictions for B images."""

    score: Tensor  # S (B,), higher for anomalies
    parts: Tensor  # S_g, S_a, S_r, S_n (B, 4)
    contributions: Tensor  # what each of them adds to S (B, 4)
    mode: Tensor  # (B,)
    group: Tensor  # the most probable group of normals (B,)
    positions: Tensor  # what M_a and M_r would add if all top positions were like this one, (B, H', W')


class MPFM(nn.Module):
    """Mixture Prototype Flow Matching on the features of one backbone.

    Args:
        closed_form: groups, whitening, prototypes of patches, the flow at step 0.
        trained: the flow and the four modules, R = 1; None where no anomaly is known.
        calibration: from scores to their sum; None before it is fitted.
    """

    def __init__(
        self, closed_form: ClosedForm, trained: Modules | None = None, calibration: PlainSum | None = None
    ) -> None:
        super().__init__()
        self.closed_form = closed_form
        self.trained = trained
        self.calibration = calibration

    @classmethod
    def restore(
        cls, fits: Mapping[str, Artefact], backbone: int, number: int = FINAL, calibration: PlainSum | None = None
    ) -> MPFM:
        """One round of what the stages gave for one of the backbones."""
        training = fits.get(stage_name("training", backbone))
        closed_form = ClosedForm.restore(fits[stage_name("prototypes", backbone)], number)
        return cls(closed_form, Modules.restore(training, number) if training else None, calibration)

    def forward(self, pooled: Tensor, maps: Tensor) -> MPFMOutput:
        """Pooled statistics (B, d) and maps (B, C, H', W') → scores and map."""
        calibration = self.calibration
        assert calibration is not None
        z = self.closed_form.standardiser.z(pooled)
        x, p, mode = self.closed_form.enter(z)
        squares = self.closed_form.patches.squares(to_patches(maps), mode)
        scores, local = self.raw_scores(z, x, p, mean_of_top(squares, self.closed_form.top_share), maps)
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

        Args:
            z: standardised features (B, d).
            x: as they enter the flow (B, d).
            p: group weights (B, K).
            squares: of the residuals of patches by channel, averaged over the top positions, (B, C).
            maps: (B, C, H', W').
        """
        g0, r0 = self.closed_form.score_of(x, p), squares.sum(1)
        if self.trained is None:
            nothing = torch.zeros_like(g0)
            return torch.stack([g0, g0, nothing, r0, r0, nothing], 1), None
        modules = self.trained
        psi = modules.flow.psi(x[None], p[None])
        g = modules.score_g(modules.flow.prototypes.squared_distances(psi))[0]
        r = modules.score_r(psi, squares[None])[0]
        a, local = modules.m_a(self.closed_form.standardiser.patches(maps))
        return torch.stack([g0, g, a[0], r0, r, -modules.m_n(z)[0]], 1), local[0]

    @torch.no_grad()
    def raw_scores_of(self, rows: FeatureRows, x: Tensor, p: Tensor, squares: Tensor) -> Tensor:
        """The six scores of stored features as they enter the flow, in small batches, (n, S)."""
        z, scores = self.closed_form.standardiser.z_of(rows), torch.empty(len(rows), len(SCORES))
        for part, maps in rows.map_batches(x.device):
            scores[part] = self.raw_scores(z[part], x[part], p[part], squares[part], maps)[0].cpu()
        return scores

    def _position_scores(self, squares: Tensor, local: Tensor | None) -> Tensor:
        """The six scores at each position (B, X, S), 0 where a score has none, from squared residuals (B, X, C)."""
        energy, modules = squares.sum(2), self.trained
        nothing = torch.zeros_like(energy)
        weighted = energy
        if modules is not None and "residual" not in modules.printed:
            weighted = modules.r_logit(modules.m_r(squares[None]))[0]
        return torch.stack([nothing, nothing, nothing if local is None else local, energy, weighted, nothing], 2)
