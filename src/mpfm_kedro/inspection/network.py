"""A production model as one network, from pixels to score and heat map: what is exported.

The inspector computes the same step by step, with numpy and PIL between the steps. Here everything is a tensor and no
step depends on the values of another one, so that the network can be written down as a graph. It is as close to the
inspector as the sums allow: pixels are resized to the very bytes that PIL makes, maps are rounded as the feature store
rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor, nn

from mpfm_kedro.backbones.building import build_backbone
from mpfm_kedro.detectors.mpfm.calibration import SIGNS, Calibration
from mpfm_kedro.detectors.mpfm.detector import FittedMPFM, load
from mpfm_kedro.detectors.mpfm.heads import top_number
from mpfm_kedro.detectors.mpfm.patches import PatchPrototypes, smooth
from mpfm_kedro.images.position_maps import FINER, SIGMA, resize
from mpfm_kedro.inspection.model import Model

PIL_BITS = 22  # of the weights of PIL's resizing
BLOCK = 16  # new pixels that are computed together


class Inspected(NamedTuple):
    """What a network says of B images.

    Args:
        score: S (B,), higher for anomalies.
        heat_map: 0..1 (B, h, w).
        parts: S_g, S_a, S_r, S_n (B, 4).
        mode: the group of normals that an image is likest (B,).
    """

    score: Tensor
    heat_map: Tensor
    parts: Tensor
    mode: Tensor


class DetectorNetwork(nn.Module):
    """A model from pixels to score and heat map; with several backbones their scores and maps are added.

    Args:
        model: of a model folder. Networks of half precision compute in single precision here.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        detector = load(model.detector, torch.device("cpu"))
        fitted = [detector] if isinstance(detector, FittedMPFM) else detector.detectors
        together = zip(model.card["backbones"], model.backbones, fitted, strict=True)
        self.branches = nn.ModuleList(Branch(*each) for each in together)
        self.low, self.high = model.card["heat_map"]["low"], model.card["heat_map"]["high"]
        first, *_ = grids = [spec["map_shape"][1:] for spec in model.card["backbones"]]
        self.to_first = nn.ModuleList(OnAxes(*map(_bilinear, own, first)) for own in grids)
        self.smooth = OnAxes(*map(_smoothing, first))
        self.requires_grad_(False).eval()

    def forward(self, pixels: Tensor) -> Inspected:
        """Bytes (B, H, W, 3) of any size → score (B,), heat map (B, h, w), parts (B, 4), mode (B,)."""
        found = [branch(pixels) for branch in self.branches]
        score = torch.stack([own.score for own in found]).sum(0)
        positions = torch.stack(
            [to_first(own.positions) for to_first, own in zip(self.to_first, found, strict=True)]
        ).sum(0)
        heat_map = ((self.smooth(positions) - self.low) / (self.high - self.low)).clamp(0, 1)
        return Inspected(score, heat_map, found[0].parts, found[0].mode)


class Found(NamedTuple):
    """What one backbone says of B images: S (B,), the local part of it (B, H', W'), parts (B, 4), mode (B,)."""

    score: Tensor
    positions: Tensor
    parts: Tensor
    mode: Tensor


class Branch(nn.Module):
    """One backbone, and the detector that was fitted to its features.

    Args:
        spec: the backbone in the card.
        weights: of the backbone.
        fitted: the detector.
    """

    def __init__(self, spec: Mapping[str, Any], weights: Mapping[str, Tensor], fitted: FittedMPFM) -> None:
        super().__init__()
        self.backbone = build_backbone(spec["backbone"], weights, spec["layers"], spec["map_layers"])
        self.statistics, self.image_size = spec["statistics"], spec["image_size"]
        closed_form, heads = fitted.closed_form, fitted.heads
        self.center = nn.Buffer(closed_form.standardiser.pooled_center)
        self.spread = nn.Buffer(closed_form.standardiser.pooled_spread)
        self.modes, self.flow = closed_form.modes, fitted.flow
        if self.flow is not None:
            self.flow.velocity.precision = "fp32"
        self.energy = PatchEnergy(closed_form.patches)
        self.top_share, self.heads = closed_form.top_share, heads
        if heads is not None:
            self.normality = nn.Buffer(torch.from_numpy(np.append(heads.weight[0], heads.bias)).float())
        self.fusion = Fusion(fitted.calibration)

    def forward(self, pixels: Tensor) -> Found:
        """Bytes (B, H, W, 3) of any size → what is found of them."""
        pooled, maps = self.backbone.features(resize_bytes(pixels, self.image_size), self.statistics)
        z = (pooled - self.center) / self.spread
        log_prob = self.modes.log_prob(z)
        mode = log_prob.argmax(1)
        g = -log_prob.logsumexp(1) / z.shape[1]
        if self.flow is not None:
            g = self.flow.global_score(self.flow.nll(self.flow.psi(z)))
        energy = self.energy(smooth(maps), mode)
        r = top_mean(energy, self.top_share)
        learned, a, n = torch.zeros_like(energy), torch.zeros_like(g), torch.zeros_like(g)
        if self.heads is not None:
            top_positions = self.heads.top_positions
            of_members = top_positions.of_members(maps)
            learned, a = of_members.mean(3).view_as(energy), top_positions.top_mean(of_members)[:, 0]
            n = -(z @ self.normality[:-1] + self.normality[-1])
        parts = torch.stack([g, a, r, n], 1)
        return Found(self.fusion(parts, mode), self.fusion.positions(learned, energy, mode), parts, mode)


class PatchEnergy(nn.Module):
    """The energy of each position, with the whitening and the prototypes of each image's own mode.

    Args:
        patches: the prototypes.
    """

    def __init__(self, patches: PatchPrototypes) -> None:
        super().__init__()
        unused = torch.arange(patches.mean.shape[1]) >= patches.number[:, None]
        self.center = nn.Buffer(patches.center[:, None])
        self.whitening = nn.Buffer(patches.whitening.mT.contiguous())
        self.slope = nn.Buffer((-2 * patches.mean).mT.contiguous())
        self.square = nn.Buffer(patches.mean.square().sum(2).masked_fill(unused, torch.inf)[:, None])
        self.scale = nn.Buffer(patches.scale)

    def forward(self, smoothed: Tensor, mode: Tensor) -> Tensor:
        """min_k (‖μ_k‖² − 2 μ_k · ψ(v) + ‖ψ(v)‖²) / (C c_j(x)): (B, C, H', W') and modes (B,) → (B, H', W')."""
        v = smoothed.flatten(2).mT
        psi = (v - self._of(self.center, mode)) @ self._of(self.whitening, mode)
        nearest = (self._of(self.square, mode) + psi @ self._of(self.slope, mode)).amin(2)
        square = (nearest + psi.square().sum(2)).clamp_min(0)
        return square.unflatten(1, smoothed.shape[2:]) / smoothed.shape[1] / self._of(self.scale, mode)

    @staticmethod
    def _of(table: Tensor, mode: Tensor) -> Tensor:
        """Rows of a table (J, …) by mode (B, …); a single row is not copied for each image."""
        return table if len(table) == 1 else table[mode]


class Fusion(nn.Module):
    """From four scores to one, as ``Calibration`` does it."""

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.center = nn.Buffer(torch.from_numpy(calibration.center.T.copy()).float())
        self.spread = nn.Buffer(torch.from_numpy(calibration.spread.T.copy()).float())
        self.weight = nn.Buffer(torch.from_numpy(SIGNS * calibration.weight.T).float())
        self.compressed = calibration.compressed

    def forward(self, parts: Tensor, mode: Tensor) -> Tensor:
        """S = w_g S_g + w_a S_a + w_r S_r − w_n S_n: (B, 4) and modes (B,) → (B,)."""
        return self._standardised(parts, self.center[mode], self.spread[mode]).mul(self.weight[mode]).sum(1)

    def positions(self, a: Tensor, r: Tensor, mode: Tensor) -> Tensor:
        """w_a S_a + w_r S_r at each position, (B, H', W') each."""
        center, spread, weight = (table[mode][:, None, None, 1:3] for table in (self.center, self.spread, self.weight))
        return (self._standardised(torch.stack([a, r], -1), center, spread) * weight).sum(-1)

    def _standardised(self, scores: Tensor, center: Tensor, spread: Tensor) -> Tensor:
        standardised = (scores - center) / spread
        return standardised.asinh() if self.compressed else standardised


class OnAxes(nn.Module):
    """A linear map of each axis of a grid: x → R x Cᵀ, (…, h, w) → (…, h', w')."""

    def __init__(self, rows: Tensor, columns: Tensor) -> None:
        super().__init__()
        self.rows, self.columns = nn.Buffer(rows), nn.Buffer(columns.T.contiguous())

    def forward(self, grid: Tensor) -> Tensor:
        """(…, h, w) → (…, h', w')."""
        return self.rows @ (grid @ self.columns)


def top_mean(values: Tensor, share: float) -> Tensor:
    """The mean over the top share of the positions, (B, H', W') → (B,)."""
    flat = values.flatten(1)
    return flat.topk(top_number(share, flat.shape[1]), 1).values.mean(1)


def resize_bytes(pixels: Tensor, side: int) -> Tensor:
    """Bytes (B, H, W, 3) → (B, 3, S, S), those that PIL's bilinear resizing gives.

    It rounds after each axis, so their order counts: the width first, but for tall images the height. Both are
    computed, and one is taken: a graph with branches costs less, but not every runtime gets those right.
    """
    height, width = pixels.shape[1:3]
    inputs = pixels, *resize_weights(height, side), *resize_weights(width, side)
    high, wide = _count(height), _count(width)
    tall = (high > side) & (2 * wide < high + side)
    return torch.where(tall, _height_first(*inputs), _width_first(*inputs))[:, :, :side, :side]


def _height_first(pixels: Tensor, rows: Tensor, row_weight: Tensor, columns: Tensor, column_weight: Tensor) -> Tensor:
    down = _resize_rows(pixels, rows, row_weight)  # (B, H, W, 3) → (B, S, W, 3)
    across = _resize_rows(down.permute(0, 2, 3, 1), columns, column_weight)  # (B, W, 3, S) → (B, S, 3, S)
    return across.permute(0, 2, 3, 1)


def _width_first(pixels: Tensor, rows: Tensor, row_weight: Tensor, columns: Tensor, column_weight: Tensor) -> Tensor:
    across = _resize_rows(pixels.permute(0, 2, 3, 1), columns, column_weight)  # (B, W, 3, H) → (B, S, 3, H)
    down = _resize_rows(across.permute(0, 3, 1, 2), rows, row_weight)  # (B, H, S, 3) → (B, S, S, 3)
    return down.permute(0, 3, 1, 2)


def _resize_rows(rows: Tensor, window: Tensor, weight: Tensor) -> Tensor:
    """n rows of bytes (B, n, …) → S rows (B, S, …), the bytes nearest to the sums; double precision holds them exactly.

    A product of small matrices: (blocks, rows of a block, window) · (B, blocks, window, …).
    """
    taken = rows.index_select(1, window.flatten()).flatten(2).unflatten(1, window.shape)
    resized = (weight @ taken.double() + 0.5).to(torch.uint8)
    return resized.flatten(1, 2).unflatten(2, rows.shape[2:])


def resize_weights(n: int, side: int) -> tuple[Tensor, Tensor]:
    """PIL's bilinear weights of n pixels for S new ones, to 22 bits.

    A new pixel needs few neighbours; those of a block of new pixels are taken together.
    w_ij ∝ max(0, 2 max(n, S) − |(2j + 1) S − (2i + 1) n|): a triangle around the centre of the new pixel i that
    reaches as far as one new pixel is wide, or one old pixel if that is more. These numbers are whole.

    Returns:
        The pixels j that a block needs (blocks, window), and w (blocks, pixels of a block, window).
    """
    i = torch.arange(-(-side // BLOCK) * BLOCK).double().view(-1, BLOCK, 1)
    n_old = _count(n)
    center, reach = (2 * i + 1) * n_old, 2 * n_old.clamp_min(side)
    first = ((center[:, 0] - reach - side) / (2 * side)).floor() + 1
    j = first + torch.arange((BLOCK + 1) * n // side + 3).double()
    inside = (j >= 0) & (j < n_old)
    weight = (reach - ((2 * j[:, None] + 1) * side - center).abs()).relu() * inside[:, None]
    share = weight / weight.sum(2, keepdim=True).clamp_min(1)
    return j.clamp_min(0).minimum(n_old - 1).long(), (share * 2**PIL_BITS + 0.5).floor() / 2**PIL_BITS


def _count(n: int) -> Tensor:
    """A number as a tensor; one that is known when the graph runs stays a part of the graph."""
    return torch.scalar_tensor(n, dtype=torch.float64)


def _bilinear(n: int, n_new: int) -> Tensor:
    """Bilinear interpolation of n values as a matrix (n', n)."""
    return nn.functional.interpolate(torch.eye(n)[None, None], (n_new, n), mode="bilinear")[0, 0]


def _smoothing(n: int) -> Tensor:
    """One axis of ``smooth_maps`` as a matrix (4 n, n)."""
    finer = resize(np.eye(n), (n, FINER * n))
    return torch.from_numpy(gaussian_filter1d(finer, FINER * SIGMA, axis=0, mode="nearest"))
