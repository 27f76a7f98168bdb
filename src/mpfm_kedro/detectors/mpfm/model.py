"""MPFM as one module: from the features of images to four scores, their sum and a map."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpfm_kedro.detectors.mpfm.calibration import Calibration, PlainSum
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, Entered
from mpfm_kedro.detectors.mpfm.objective import Forms, Modules
from mpfm_kedro.detectors.mpfm.patches import to_patches, top_positions


class Inspection(NamedTuple):
    """What a detector says of B images.

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


class RawScores(NamedTuple):
    """The six scores before calibration: of the image (B, S), and at each position (B, X, S), 0 where it has none."""

    image: Tensor
    positions: Tensor


class MPFM(nn.Module):
    """Mixture Prototype Flow Matching on the features of one backbone.

    Args:
        closed_form: groups, whitening, prototypes of patches, the flow at step 0.
        trained: the flow and the four modules, R = 1; None where no anomaly is known.
        calibration: from scores to their sum; None before it is fitted.
        top_share: of the positions, averaged by M_r.
        forms: of the objective that was trained, which decide what S_g and S_r are.
    """

    def __init__(
        self,
        closed_form: ClosedForm,
        trained: Modules | None,
        calibration: Calibration | PlainSum | None,
        top_share: float,
        forms: Forms | None = None,
    ) -> None:
        super().__init__()
        self.closed_form = closed_form
        self.trained = trained
        self.calibration = calibration
        self.top_share = top_share
        self.image_residual = forms is not None and forms.residual
        self.raw_likelihood = forms is not None and forms.likelihood

    def forward(self, pooled: Tensor, maps: Tensor) -> Inspection:
        """Pooled statistics (B, d) and maps (B, C, H', W') → scores and map."""
        z = self.closed_form.standardiser.z(pooled)
        entered = self.closed_form.enter(z)
        raw = self.raw_scores(z, maps, entered)
        assert self.calibration is not None
        t = self.calibration(raw.image, entered.p, entered.mode)
        contributions = self.calibration.contributions(t, entered.mode)
        local = self.calibration.contributions(self.calibration(raw.positions, entered.p, entered.mode), entered.mode)
        return Inspection(
            score=contributions.sum(1),
            parts=self.calibration.parts(t, entered.mode),
            contributions=contributions,
            mode=entered.mode,
            group=entered.p.argmax(1),
            positions=local[..., 1:3].sum(2).unflatten(1, maps.shape[2:]),
        )

    def raw_scores(self, z: Tensor, maps: Tensor, entered: Entered) -> RawScores:
        """The six scores of images that have entered, and those of their positions."""
        (x, p, mode), closed_form, modules = entered, self.closed_form, self.trained
        patches = closed_form.patches
        nearest = patches.nearest(to_patches(maps), mode)
        squares = patches.squares(nearest, mode, patches.of_mode(patches.scale, mode).flatten(1))
        energy = squares.sum(2)
        top = top_positions(energy, self.top_share)
        g0, r0 = closed_form.score_of(x, p), energy.gather(1, top).mean(1)
        nothing, nowhere = torch.zeros_like(g0), torch.zeros_like(energy)
        g, a, r, n = g0, nothing, r0, nothing
        learned, weighted = nowhere, energy
        if modules is not None:
            psi = modules.flow.psi(x[None], p[None])
            nll = modules.flow.score(psi)
            g = (nll * x.shape[1] if self.raw_likelihood else modules.m_g(nll))[0]
            if self.image_residual:
                r = modules.r_logit(modules.m_r(modules.image_squares(psi)))[0]
            else:
                weighted = modules.r_logit(modules.m_r(squares[None]))[0]
                r = weighted.gather(1, top).mean(1)
            a, learned = (each[0] for each in modules.m_a(closed_form.standardiser.patches(maps)))
            n = -modules.m_n(z)[0]
        image = torch.stack([g0, g, a, r0, r, n], 1)
        positions = torch.stack([nowhere, nowhere, learned, energy, weighted, nowhere], 2)
        return RawScores(image, positions)
