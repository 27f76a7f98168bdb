"""Initialisation: K-means++ groups, whitening and prototypes of patches, in every round of cross-fitting.

Nothing is learned from an anomaly here. What the closed form without a fold says of the fold's normals is what the
final one will say of new normals: training and calibration rest on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.groups import Groups, fit_partition, means_of
from mpfm_kedro.detectors.mpfm.patch_fitting import SmoothedPatches, fit_patch_prototypes
from mpfm_kedro.detectors.mpfm.patches import Nearest, PatchPrototypes, position_scale, to_patches, top_positions
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.standardiser import Standardiser, fit_standardiser
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity
from mpfm_kedro.detectors.mpfm.whitening import SHRINKAGES, Spectrum, Whitening, no_whitening

GAIN_PRIOR = 20  # normals that the gain of a group is drawn to that of all


class Entered(NamedTuple):
    """Images as they enter the flow: x (n, d), group weights p (n, K), mode (n,)."""

    x: Tensor
    p: Tensor
    mode: Tensor


class ClosedForm(nn.Module):
    """The start of the flow in one round: groups, whitening, prototypes of patches.

    Args:
        standardiser: of the features, the same in all rounds.
        groups: of the normals.
        whitening: A.
        patches: prototypes of patches.
        flow: without a network, R = 1.
    """

    def __init__(
        self, standardiser: Standardiser, groups: Groups, whitening: Whitening, patches: PatchPrototypes, flow: Flow
    ) -> None:
        super().__init__()
        self.standardiser = standardiser
        self.groups = groups
        self.whitening = whitening
        self.patches = patches
        self.flow = flow

    @property
    def center(self) -> Tensor:
        """m (K, d), the whitened means of the groups."""
        velocity = self.flow.velocity
        assert isinstance(velocity, CoupledVelocity)
        return velocity.center[0]

    def enter(self, z: Tensor) -> Entered:
        """x = A z, p_k(z) and the mode of standardised features (n, d)."""
        p, mode = self.groups(z)
        return Entered(self.whitening(z), p, mode)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.patches.mean.device

    def score_of(self, x: Tensor, p: Tensor) -> Tensor:
        """S_g at step 0 of images that have entered, (n, d) and (n, K) → (n,)."""
        return self.flow.score(self.flow.psi(x[None], p[None]))[0]

    @torch.no_grad()
    def mean_squares(self, rows: FeatureRows, mode: Tensor, top_share: float) -> Tensor:
        """Squared residuals of patches by channel, averaged over the top positions of each image, (n, C)."""
        found = [torch.empty(0, rows.maps.shape[1])]
        for part, maps in rows.map_batches(self.device):
            own = mode[part]
            nearest = self.patches.nearest(to_patches(maps), own)
            top = top_positions(self.patches.energy(nearest, own), top_share)
            found.append(_top_squares(self.patches, nearest, own, top).cpu())
        return torch.cat(found)


def _top_squares(patches: PatchPrototypes, nearest: Nearest, mode: Tensor, top: Tensor) -> Tensor:
    """Squared residuals by channel, averaged over some positions (B, k), (B, C)."""
    psi = nearest.psi.gather(1, top[..., None].expand(-1, -1, nearest.psi.shape[2]))
    chosen = Nearest(psi, nearest.square.gather(1, top), nearest.number.gather(1, top))
    scale = patches.of_mode(patches.scale, mode).flatten(1).expand(len(top), -1).gather(1, top)
    return patches.squares(chosen, mode, scale).mean(1)


@dataclass(frozen=True)
class HeldOutNormals:
    """What the closed form without its fold makes of each normal.

    Args:
        offset: x − m_c (n, d), c the most probable group.
        group: c (n,).
        p: group weights (n, K).
        mode: (n,).
        squares: of the residuals of patches by channel, averaged over the top positions, (n, C).
    """

    offset: Tensor
    group: Tensor
    p: Tensor
    mode: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Initialised:
    """The start of a fit.

    Args:
        closed_forms: of all rounds, the last of all normals.
        held_out: the normals by the closed forms without them.
        group: of each normal in the partition (n,).
        top_share: of the positions, averaged by M_r.
        details: for reports: shrinkage, and one row for each number of modes that was tried.
    """

    closed_forms: list[ClosedForm]
    held_out: HeldOutNormals
    group: np.ndarray
    top_share: float
    details: dict[str, Any]

    @property
    def n_modes(self) -> int:
        """J."""
        return len(self.closed_forms[-1].groups.mode_center)


def initialise(
    normals: FeatureRows,
    fold: np.ndarray,
    n_prototypes: int,
    n_patch_prototypes: int,
    max_modes: int,
    min_mode_size: int,
    top_share: float,
    seed: int,
    device: torch.device,
    memory: int,
    whitened: bool = True,
) -> Initialised:
    """The closed forms of normals with folds (n,).

    Args:
        normals: n training normals.
        fold: that leaves out each of them.
        n_prototypes: K, groups of images.
        n_patch_prototypes: of all modes together.
        max_modes: J is chosen up to this.
        min_mode_size: a smaller part of the normals is not a mode.
        top_share: of the positions, averaged by M_r.
        seed: of K-means++ and k-centre.
        device: where patches are compared.
        memory: bytes that patches may take.
        whitened: False for the printed form, whose flow starts from raw features.
    """
    standardiser = fit_standardiser(normals)
    z = standardiser.z_of(normals).numpy()
    partition = fit_partition(z, fold, n_prototypes, max_modes, min_mode_size, seed)
    kept = fold != np.arange(fold.max() + 2)[:, None]
    groups = [partition.groups(own) for own in kept]
    means = [means_of(z[own], partition.group[own], partition.n_groups) for own in kept]
    p, mode, group = _held_out_groups(torch.from_numpy(z), fold, groups)
    held_out_offset = z - np.stack(means)[fold, group]
    if whitened:
        spectra = [Spectrum.of(z[own] - mean[partition.group[own]]) for own, mean in zip(kept, means, strict=True)]
        shrinkage = _choose_shrinkage(spectra, held_out_offset, fold)
        whitenings = [spectrum.whitening(shrinkage) for spectrum in spectra]
    else:
        shrinkage, whitenings = 1.0, [no_whitening(z.shape[1]) for _ in kept]
    offset = torch.empty(z.shape)
    for number, whitening in enumerate(whitenings[:-1]):
        offset[fold == number] = whitening(torch.from_numpy(held_out_offset[fold == number]))
    smoothed = SmoothedPatches(normals, device, memory)
    patches = fit_patch_prototypes(smoothed, kept, partition.mode, partition.n_modes, n_patch_prototypes, seed)
    closed_forms = []
    for own, mean, of_round, whitening, prototypes in zip(kept, means, groups, whitenings, patches, strict=True):
        flow = _start(whitening(torch.from_numpy(mean)), of_round.share, offset, group, own, whitened)
        closed_forms.append(ClosedForm(standardiser, of_round, whitening, prototypes, flow))
    squares = _held_out_squares(closed_forms, smoothed, fold, mode, top_share)
    held_out = HeldOutNormals(offset, torch.from_numpy(group), p, mode, squares)
    details = {"shrinkage": float(shrinkage), "modes_tried": partition.modes_tried}
    return Initialised(closed_forms, held_out, partition.group, top_share, details)


def _held_out_groups(z: Tensor, fold: np.ndarray, groups: list[Groups]) -> tuple[Tensor, Tensor, np.ndarray]:
    """Group weights (n, K), modes (n,) and most probable groups (n,) by the groups without each normal's fold."""
    p, mode = torch.empty(len(z), len(groups[0].center)), torch.empty(len(z), dtype=torch.long)
    for number in range(len(groups) - 1):
        own = torch.from_numpy(fold == number)
        p[own], mode[own] = groups[number](z[own])
    return p, mode, p.argmax(1).numpy()


def _choose_shrinkage(spectra: list[Spectrum], offset: np.ndarray, fold: np.ndarray) -> float:
    """The shrinkage that held-out normals find most likely, from their offsets (n, d)."""
    likelihoods = [spectrum.log_likelihoods(offset[fold == f]) for f, spectrum in enumerate(spectra[:-1])]
    return float(SHRINKAGES[np.concatenate(likelihoods).mean(0).argmax()])


def _start(center: Tensor, share: Tensor, offset: Tensor, group: np.ndarray, kept: np.ndarray, whitened: bool) -> Flow:
    """The flow at step 0: prototypes where the groups are, s = 1; as printed without gains, s² = inertia / (d n).

    The gain of a group is a_k = ((Σ_{i∈k} e_i + 20 ē) / (n_k + 20))^(−1/2) with e = ‖x − m_c‖² / d of held-out normals.
    """
    energy, own = offset.square().mean(1).double().numpy()[kept], group[kept]
    total = np.bincount(own, energy, len(center)) + GAIN_PRIOR * energy.mean()
    mean = total / (np.bincount(own, minlength=len(center)) + GAIN_PRIOR)
    gain = np.where(mean > 1e-9, mean.clip(1e-9) ** -0.5, 1.0)  # copies of one image do not vary
    scale = 1.0 if whitened else max(float(energy.mean()), 1e-12) ** 0.5
    gains = torch.from_numpy(gain).float() if whitened else torch.ones(len(center))
    prototypes = PrototypeMixture(center[None], share[None], torch.tensor([scale]))
    return Flow(CoupledVelocity(center[None], gains[None]), prototypes.requires_grad_(False))


def _held_out_squares(
    closed_forms: list[ClosedForm], smoothed: SmoothedPatches, fold: np.ndarray, mode: Tensor, top_share: float
) -> Tensor:
    """Give all closed forms the scale that held-out normals need at each position; their residuals by it, (n, C)."""
    n, positions, channels = smoothed.shape
    energy, index = torch.empty(n, positions), torch.empty(n, positions, dtype=torch.int32)
    device = smoothed.device
    with torch.no_grad():
        for number, closed_form in enumerate(closed_forms[:-1]):
            patches = closed_form.patches.to(device)
            for images, batch in smoothed.batches(np.flatnonzero(fold == number)):
                nearest = patches.nearest(batch, mode[images].to(device))
                energy[images], index[images] = nearest.square.cpu() / channels, nearest.number.cpu().int()
        n_modes = len(closed_forms[-1].groups.mode_center)
        scale = position_scale(energy.view(n, *smoothed.map_shape), mode, n_modes)
        for closed_form in closed_forms:
            closed_form.patches.scale.copy_(scale)
        top = top_positions(energy / scale[mode].flatten(1), top_share)
        squares = torch.empty(n, channels)
        for number, closed_form in enumerate(closed_forms[:-1]):
            patches = closed_form.patches
            for images, batch in smoothed.batches(np.flatnonzero(fold == number)):
                own, places = mode[images].to(device), top[images].to(device)
                chosen = batch.gather(1, places[..., None].expand(-1, -1, channels))
                nearest = Nearest(
                    patches.whiten(chosen, own), energy[images], index[images].to(device).long().gather(1, places)
                )
                position = scale[mode[images]].flatten(1).to(device).gather(1, places)
                squares[images] = patches.squares(nearest, own, position).mean(1).cpu()
    return squares
