"""Initialisation: K-means++ groups, whitening and prototypes of patches, in every round of cross-fitting.

Nothing is learned from an anomaly here. What the closed form without a fold says of the fold's normals is what the
final one will say of new normals: training and calibration rest on it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.detector import MPFM
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.groups import Groups, fit_partition, means_of
from mpfm_kedro.detectors.mpfm.patches import SmoothedPatches, fit_patch_prototypes, held_out_squares
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.rounds import FINAL, Rounds
from mpfm_kedro.detectors.mpfm.specification import stage_name
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity
from mpfm_kedro.detectors.mpfm.whitening import SHRINKAGES, Spectrum, Standardiser, no_whitening
from mpfm_kedro.parameters import PrototypeParameters

GAIN_PRIOR = 20  # normals that the gain of a group is drawn to that of all


class HeldOut(NamedTuple):
    """What the closed form without its fold makes of each of n normals."""

    fold: np.ndarray  # (n,)
    offset: Tensor  # x − m_c (n, d)
    group: Tensor  # c, the most probable group (n,)
    p: Tensor  # group weights (n, K)
    mode: Tensor  # (n,)
    squares: Tensor  # of the residuals of patches by channel, averaged over the top positions (n, C)


class CrossFit(NamedTuple):
    """The training data in one of the backbones, and what is fitted to them in every round so far."""

    data: TrainingData
    rounds: Rounds
    models: list[MPFM]  # of each round, the last one of all normals
    held_out: HeldOut
    z: Tensor  # standardised features of normals, then of known anomalies with their views (n + m, d), on the CPU

    @classmethod
    def restore(
        cls, fits: Mapping[str, Artefact], data: TrainingData, backbone: int, seed: int, device: torch.device
    ) -> Self:
        """From what is stored of the stages; the seed is that of the folds of the anomalies."""
        data, start = data.of_backbone(backbone), fits[stage_name("prototypes", backbone)]
        held_out = HeldOut(start.tensors["fold"].numpy(), **start.part("held_out"))
        models = [MPFM.restore(fits, backbone, r).to(device) for r in range(start.details["n_rounds"])]
        z = torch.cat([models[FINAL].standardiser.z_of(rows).cpu() for rows in (data.normals, data.anomalies)])
        return cls(data, Rounds.of_folds(held_out.fold, data, seed), models, held_out, z)

    def held_out_normals(self) -> Iterator[tuple[MPFM, np.ndarray, Tensor, Tensor]]:
        """The model of each round, the normals (b,) that it leaves out, and their x (b, d) and p (b, K)."""
        for number, model in enumerate(self.models[:FINAL]):
            normals = np.flatnonzero(self.held_out.fold == number)
            x = model.center[self.held_out.group[normals]] + self.held_out.offset[normals].to(model.center)
            yield model, normals, x, self.held_out.p[normals].to(x)


def initialise(
    normals: FeatureRows,
    fold: np.ndarray,
    parameters: PrototypeParameters,
    seed: int,
    context: Context,
    whitened: bool = True,
) -> Artefact:
    """The start of MPFM in all rounds, and what it makes of held-out normals.

    Args:
        normals: n training normals.
        fold: that leaves out each of them (n,).
        parameters: numbers of groups, modes and prototypes of patches, and the share of positions averaged by M_r.
        seed: of K-means++ and k-centre.
        context: where patches are compared, and the memory that they may take.
        whitened: False for the printed form: K-means and prototypes on raw features, without a smallest group.
    """
    standardiser = Standardiser.fit(normals)
    if not whitened:
        standardiser.pooled_center.zero_()
        standardiser.pooled_spread.fill_(1)
    z = standardiser.z_of(normals).numpy()
    limits = parameters.n_prototypes, parameters.max_modes, parameters.min_mode_size
    partition = fit_partition(z, fold, *limits, seed, raw=not whitened)
    kept = fold != np.arange(fold.max() + 2)[:, None]
    groups = [partition.groups(learned) for learned in kept]
    means = [means_of(z[learned], partition.group[learned], partition.n_groups) for learned in kept]
    p, mode = _held_out_groups(torch.from_numpy(z), fold, groups)
    group = p.argmax(1)
    offset = z - np.stack(means)[fold, group]
    shrinkage, whitenings = 1.0, [no_whitening(z.shape[1])] * len(kept)
    if whitened:
        within = zip(kept, means, strict=True)
        spectra = [Spectrum.of(z[learned] - mean[partition.group[learned]]) for learned, mean in within]
        shrinkage = _choose_shrinkage(spectra, offset, fold)
        whitenings = [spectrum.whitening(shrinkage) for spectrum in spectra]
    x_offset = torch.empty(z.shape)
    for number, whitening in enumerate(whitenings[:FINAL]):
        x_offset[fold == number] = whitening(torch.from_numpy(offset[fold == number]))
    smoothed = SmoothedPatches(normals, context.device, context.memory // 2)
    n_patches = parameters.n_patch_prototypes
    patches = fit_patch_prototypes(smoothed, fold, partition.mode, partition.n_modes, n_patches, seed)
    squares = held_out_squares(patches, smoothed, fold, mode, parameters.top_share)
    held_out = {"offset": x_offset, "group": group, "p": p, "mode": mode, "squares": squares}
    tensors = {f"held_out.{name}": value for name, value in held_out.items()}
    tensors |= {"fold": torch.from_numpy(fold), "group": torch.from_numpy(partition.group)}
    standardiser.state_dict(destination=tensors, prefix="standardiser.")
    energy = x_offset.square().mean(1).double().numpy()
    for r, learned in enumerate(kept):
        center = whitenings[r](torch.from_numpy(means[r]))
        if whitened:
            flow = _start(center, groups[r].share, energy[learned], group.numpy()[learned])
        else:
            flow = _printed_start(center, groups[r].share, z[learned] - means[r][partition.group[learned]])
        of_round = {"groups": groups[r], "whitening": whitenings[r], "patches": patches[r], "flow": flow}
        nn.ModuleDict(of_round).state_dict(destination=tensors, prefix=f"rounds.{r}.")
    details: dict[str, Any] = {"shrinkage": shrinkage, "modes_tried": partition.modes_tried}
    details |= {"n_rounds": len(kept), "top_share": parameters.top_share}
    return Artefact({name: value.cpu().clone() for name, value in tensors.items()}, details)


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


def _start(center: Tensor, share: Tensor, energy: np.ndarray, group: np.ndarray) -> Flow:
    """The flow at step 0: prototypes where the groups are, s = 1.

    The gain of a group is a_k = ((Σ_{i∈k} e_i + 20 ē) / (n_k + 20))^(−1/2) with e = ‖x − m_c‖² / d of held-out normals.
    """
    total = np.bincount(group, energy, len(center)) + GAIN_PRIOR * energy.mean()
    mean = total / (np.bincount(group, minlength=len(center)) + GAIN_PRIOR)
    gain = torch.from_numpy(np.where(mean > 1e-9, mean.clip(1e-9) ** -0.5, 1.0)).float()  # copies do not vary
    return _flow(center, share, gain, 1.0)


def _printed_start(center: Tensor, share: Tensor, offset: np.ndarray) -> Flow:
    """The printed form: prototypes where the groups are, s² = inertia / (d n) of their normals' offsets (n, d)."""
    return _flow(center, share, torch.ones(len(center)), max(float(np.square(offset).mean()), 1e-12) ** 0.5)


def _flow(center: Tensor, share: Tensor, gain: Tensor, scale: float) -> Flow:
    prototypes = PrototypeMixture(mean=center[None], logit=share.log()[None], scale=torch.tensor([scale]))
    return Flow(CoupledVelocity(center=center[None], gain=gain[None]), prototypes)
