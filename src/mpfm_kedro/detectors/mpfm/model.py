"""MPFM as one module: from the features of images to four scores, their sum and a map."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.calibration import Calibration, PlainSum
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.detectors.mpfm.patches import mean_of_top, to_patches


class Inspection(NamedTuple):
    """Predictions for B images.

    Args:
        score: S (B,), higher for anomalies.
        parts: S_g, S_a, S_r, S_n (B, 4).
        contributions: what each of them adds to S (B, 4).
        mode: (B,).
        group: the most probable group of normals (B,).
        positions: what M_a and M_r would add if all top positions were like this one, (B, H', W').
    """

    score: Tensor
    parts: Tensor
    contributions: Tensor
    mode: Tensor
    group: Tensor
    positions: Tensor


class MPFM(nn.Module):
    """Mixture Prototype Flow Matching on the features of one backbone.

    Args:
        closed_form: groups, whitening, prototypes of patches, the flow at step 0.
        trained: the flow and the four modules, R = 1; None where no anomaly is known.
        calibration: from scores to their sum; None before it is fitted.
        top_share: of the positions, averaged by M_r.
    """

    def __init__(
        self,
        closed_form: ClosedForm,
        trained: Modules | None,
        calibration: Calibration | PlainSum | None,
        top_share: float,
    ) -> None:
        super().__init__()
        self.closed_form = closed_form
        self.trained = trained
        self.calibration = calibration
        self.top_share = top_share

    def forward(self, pooled: Tensor, maps: Tensor) -> Inspection:
        """Pooled statistics (B, d) and maps (B, C, H', W') → scores and map."""
        calibration = self.calibration
        assert calibration is not None
        z = self.closed_form.standardiser.z(pooled)
        x, p, mode = self.closed_form.enter(z)
        squares = self.closed_form.patches.squares(to_patches(maps), mode)
        scores, learned = self.raw_scores(z, x, p, mean_of_top(squares, self.top_share), maps)
        t = calibration(scores, p, mode)
        contributions = calibration.contributions(t, mode)
        at_positions = calibration(self._position_scores(squares, learned), p, mode)
        return Inspection(
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
        a, learned = modules.m_a(self.closed_form.standardiser.patches(maps))
        return torch.stack([g0, g, a[0], r0, r, -modules.m_n(z)[0]], 1), learned[0]

    def _position_scores(self, squares: Tensor, learned: Tensor | None) -> Tensor:
        """The six scores at each position (B, X, S), 0 where a score has none, from squared residuals (B, X, C)."""
        energy, modules = squares.sum(2), self.trained
        nothing = torch.zeros_like(energy)
        weighted = energy
        if modules is not None and not modules.forms.residual:
            weighted = modules.r_logit(modules.m_r(squares[None]))[0]
        return torch.stack([nothing, nothing, nothing if learned is None else learned, energy, weighted, nothing], 2)
