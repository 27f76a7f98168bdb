"""Initialisation: K-means++ groups, whitening and prototypes of patches, in every round of cross-fitting.

Nothing is learned from an anomaly here. What the closed form without a fold says of the fold's normals is what the
final one will say of new normals: training and calibration rest on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.groups import Groups, fit_partition, means_of
from mpfm_kedro.detectors.mpfm.patch_fitting import SmoothedPatches, fit_patch_prototypes
from mpfm_kedro.detectors.mpfm.patches import (
    PatchPrototypes,
    at_positions,
    mean_of_top,
    position_scale,
    to_patches,
    top_positions,
)
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.rounds import FINAL
from mpfm_kedro.detectors.mpfm.standardiser import Standardiser, fit_standardiser
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity
from mpfm_kedro.detectors.mpfm.whitening import SHRINKAGES, Spectrum, Whitening, no_whitening
from mpfm_kedro.parameters import PrototypeParameters

GAIN_PRIOR = 20  # normals that the gain of a group is drawn to that of all
HELD_OUT = ("offset", "group", "p", "mode", "squares")


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

    @classmethod
    def restore(cls, artefact: Artefact, number: int = FINAL) -> Self:
        """The closed form of one round of what ``Initialised.store`` gave."""
        part = Artefact(artefact.part(f"rounds.{number % artefact.details['n_rounds']}")).part
        prototypes, velocity = PrototypeMixture(**part("flow.prototypes")), part("flow.velocity")
        return cls(
            Standardiser(**artefact.part("standardiser")),
            Groups(**part("groups")),
            Whitening(**part("whitening")),
            PatchPrototypes(**part("patches")),
            Flow(CoupledVelocity(velocity["center"], velocity["gain"]), prototypes.requires_grad_(False)),
        )

    @property
    def center(self) -> Tensor:
        """m (K, d), the whitened means of the groups."""
        assert isinstance(self.flow.velocity, CoupledVelocity)
        return self.flow.velocity.center[0]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.patches.mean.device

    def enter(self, z: Tensor) -> Entered:
        """x = A z, p_k(z) and the mode of standardised features (n, d)."""
        p, mode = self.groups(z)
        return Entered(self.whitening(z), p, mode)

    def score_of(self, x: Tensor, p: Tensor) -> Tensor:
        """S_g at step 0 of images that have entered, (n, d) and (n, K) → (n,)."""
        return self.flow.score(self.flow.psi(x[None], p[None]))[0]

    @torch.no_grad()
    def mean_squares(self, rows: FeatureRows, mode: Tensor, top_share: float) -> Tensor:
        """Squared residuals of patches by channel, averaged over the top positions of each image, (n, C)."""
        squares = torch.empty(len(rows), rows.maps.shape[1])
        for part, maps in rows.map_batches(self.device):
            squares[part] = mean_of_top(self.patches.squares(to_patches(maps), mode[part]), top_share).cpu()
        return squares


@dataclass(frozen=True)
class Initialised:
    """The start of a fit, and what the closed form without its fold makes of each normal.

    Args:
        closed_forms: of all rounds, the last of all normals.
        fold: of each normal (n,).
        offset: x − m_c (n, d), c the most probable group.
        group: c (n,).
        p: group weights (n, K).
        mode: (n,).
        squares: of the residuals of patches by channel, averaged over the top positions, (n, C).
        top_share: of the positions, averaged by M_r.
    """

    closed_forms: list[ClosedForm]
    fold: np.ndarray
    offset: Tensor
    group: Tensor
    p: Tensor
    mode: Tensor
    squares: Tensor
    top_share: float

    @property
    def n_modes(self) -> int:
        """J."""
        return len(self.closed_forms[FINAL].groups.mode_center)

    @property
    def center(self) -> Tensor:
        """m of all rounds, (R, K, d)."""
        return torch.stack([closed_form.center for closed_form in self.closed_forms])

    def held_out(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each round that leaves something out, and the normals that it leaves out."""
        for number in range(len(self.closed_forms) - 1):
            yield number, np.flatnonzero(self.fold == number)

    def x(self, number: int, normals: np.ndarray) -> Tensor:
        """x of some normals as if a round had left them out, (b, d)."""
        closed_form = self.closed_forms[number]
        return closed_form.center[self.group[normals]] + self.offset[normals].to(closed_form.device)

    def step_0_scores(self) -> Tensor:
        """S_g at step 0 of each normal by the closed form without its fold, (n,)."""
        scores = torch.empty(len(self.fold))
        for number, normals in self.held_out():
            closed_form = self.closed_forms[number]
            p = self.p[normals].to(closed_form.device)
            scores[normals] = closed_form.score_of(self.x(number, normals), p).cpu()
        return scores

    def store(self, group: np.ndarray, details: dict[str, Any]) -> Artefact:
        """To be stored, with the group of each normal in the partition (n,) and further details."""
        tensors = {"fold": torch.from_numpy(self.fold), "group": torch.from_numpy(group)}
        tensors |= {f"held_out.{name}": getattr(self, name) for name in HELD_OUT}
        for number, closed_form in enumerate(self.closed_forms):
            for name, value in closed_form.state_dict().items():
                tensors[name if name.startswith("standardiser.") else f"rounds.{number}.{name}"] = value
        tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        return Artefact(tensors, {"n_rounds": len(self.closed_forms), "top_share": self.top_share, **details})

    @classmethod
    def restore(cls, artefact: Artefact, device: torch.device) -> Self:
        """The inverse of ``store``, with the closed forms on a device."""
        closed_forms = [ClosedForm.restore(artefact, r).to(device) for r in range(artefact.details["n_rounds"])]
        held_out, fold = artefact.part("held_out"), artefact.tensors["fold"].numpy()
        return cls(closed_forms, fold, **held_out, top_share=artefact.details["top_share"])


def initialise(
    normals: FeatureRows,
    fold: np.ndarray,
    parameters: PrototypeParameters,
    seed: int,
    context: Context,
    whitened: bool = True,
) -> Artefact:
    """The closed forms of normals with folds (n,), as ``Initialised`` stores them.

    Args:
        normals: n training normals.
        fold: that leaves out each of them.
        parameters: numbers of groups, modes and prototypes of patches, and the share of positions averaged by M_r.
        seed: of K-means++ and k-centre.
        context: where patches are compared, and the memory that they may take.
        whitened: False for the printed form, whose flow starts from raw features.
    """
    standardiser = fit_standardiser(normals)
    z = standardiser.z_of(normals).numpy()
    limits = parameters.n_prototypes, parameters.max_modes, parameters.min_mode_size
    partition = fit_partition(z, fold, *limits, seed)
    kept = fold != np.arange(fold.max() + 2)[:, None]
    groups = [partition.groups(learned) for learned in kept]
    means = [means_of(z[learned], partition.group[learned], partition.n_groups) for learned in kept]
    p, mode = _held_out_groups(torch.from_numpy(z), fold, groups)
    group = p.argmax(1)
    offset = z - np.stack(means)[fold, group]
    shrinkage, whitenings = 1.0, [no_whitening(z.shape[1])] * len(kept)
    if whitened:
        spectra = [Spectrum.of(z[own] - mean[partition.group[own]]) for own, mean in zip(kept, means, strict=True)]
        shrinkage = _choose_shrinkage(spectra, offset, fold)
        whitenings = [spectrum.whitening(shrinkage) for spectrum in spectra]
    x_offset = torch.empty(z.shape)
    for number, whitening in enumerate(whitenings[:FINAL]):
        x_offset[fold == number] = whitening(torch.from_numpy(offset[fold == number]))
    smoothed = SmoothedPatches(normals, context.device, context.memory // 2)
    n_patches = parameters.n_patch_prototypes
    patches = fit_patch_prototypes(smoothed, kept, partition.mode, partition.n_modes, n_patches, seed)
    squares = _held_out_squares(patches, smoothed, fold, mode, parameters.top_share)
    energy = x_offset.square().mean(1).double().numpy()
    closed_forms = []
    for r, learned in enumerate(kept):
        center = whitenings[r](torch.from_numpy(means[r]))
        flow = _start(center, groups[r].share, energy[learned], group.numpy()[learned], whitened)
        closed_forms.append(ClosedForm(standardiser, groups[r], whitenings[r], patches[r], flow))
    initialised = Initialised(closed_forms, fold, x_offset, group, p, mode, squares, parameters.top_share)
    details = {"shrinkage": shrinkage, "modes_tried": partition.modes_tried}
    return initialised.store(partition.group, details)


def _held_out_groups(z: Tensor, fold: np.ndarray, groups: list[Groups]) -> tuple[Tensor, Tensor]:
    """Group weights (n, K) and modes (n,) by the groups without each normal's fold."""
    p, mode = torch.empty(len(z), len(groups[0].center)), torch.empty(len(z), dtype=torch.long)
    for number, without_fold in enumerate(groups[:FINAL]):
        normals = torch.from_numpy(fold == number)
        p[normals], mode[normals] = without_fold(z[normals])
    return p, mode


def _choose_shrinkage(spectra: list[Spectrum], offset: np.ndarray, fold: np.ndarray) -> float:
    """The shrinkage that held-out normals find most likely, from their offsets (n, d)."""
    likelihoods = [spectrum.log_likelihoods(offset[fold == f]) for f, spectrum in enumerate(spectra[:FINAL])]
    return float(SHRINKAGES[np.concatenate(likelihoods).mean(0).argmax()])


def _start(center: Tensor, share: Tensor, energy: np.ndarray, group: np.ndarray, whitened: bool) -> Flow:
    """The flow at step 0: prototypes where the groups are, s = 1; as printed without gains, s² = inertia / (d n).

    The gain of a group is a_k = ((Σ_{i∈k} e_i + 20 ē) / (n_k + 20))^(−1/2) with e = ‖x − m_c‖² / d of held-out normals.
    """
    gain, scale = torch.ones(len(center)), max(float(energy.mean()), 1e-12) ** 0.5
    if whitened:
        total = np.bincount(group, energy, len(center)) + GAIN_PRIOR * energy.mean()
        mean = total / (np.bincount(group, minlength=len(center)) + GAIN_PRIOR)
        # copies of one image do not vary
        gain, scale = torch.from_numpy(np.where(mean > 1e-9, mean.clip(1e-9) ** -0.5, 1.0)).float(), 1.0
    prototypes = PrototypeMixture(mean=center[None], logit=share.log()[None], scale=torch.tensor([scale]))
    return Flow(CoupledVelocity(center[None], gain[None]), prototypes.requires_grad_(False))


@torch.no_grad()
def _held_out_squares(
    patches: list[PatchPrototypes], smoothed: SmoothedPatches, fold: np.ndarray, mode: Tensor, top_share: float
) -> Tensor:
    """Give all prototypes the scale that held-out normals need at each position; their residuals by it, (n, C)."""

    def batches() -> Iterator[tuple[PatchPrototypes, Tensor, Tensor, Tensor]]:
        for number, prototypes in enumerate(patches[:FINAL]):
            prototypes.to(smoothed.device)
            for images, batch in smoothed.batches(np.flatnonzero(fold == number)):
                index = torch.from_numpy(images)
                yield prototypes, index, batch, mode[index].to(smoothed.device)

    n, positions, channels = smoothed.shape
    energy, squares = torch.empty(n, positions), torch.empty(n, channels)
    for prototypes, images, batch, of_images in batches():
        energy[images] = prototypes.squares(batch, of_images).sum(2).cpu()
    scale = position_scale(energy.view(n, *smoothed.map_shape), mode, len(patches[FINAL].center))
    for prototypes in patches:
        prototypes.scale.copy_(scale)
    top = top_positions(energy / scale[mode].flatten(1), top_share)
    for prototypes, images, batch, of_images in batches():
        position = top[images].to(smoothed.device)
        squares[images] = prototypes.squares(at_positions(batch, position), of_images, position).mean(1).cpu()
    return squares
