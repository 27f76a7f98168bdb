"""The model before training: standardiser, modes, K-means++ prototypes, and ψ_0 of the training samples."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from mpfm_kedro.model.feature_rows import FeatureRows
from mpfm_kedro.model.mixture import PrototypeMixture
from mpfm_kedro.model.mode_fitting import FittedModes, fit_modes, folds, modes_without_fold
from mpfm_kedro.model.modes import Modes, Start
from mpfm_kedro.model.mpfm import MPFM, Standardiser
from mpfm_kedro.model.patches import PatchGroups, fit_patch_groups

logger = logging.getLogger(__name__)
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Initialisation:
    """Everything that is known of the normals before any training step.

    Args:
        standardiser: centre and spread of the features.
        fitted: the modes.
        tried: one row for each number of modes tried.
        prototypes: P_GM.
        patches: groups of the normals' patches; None without a closed-form start.
        global_center: centre of the normals' NLL per dimension, each by modes that were fitted without it.
        global_spread: its spread.
    """

    standardiser: Standardiser
    fitted: FittedModes
    tried: list[dict[str, float]]
    prototypes: PrototypeMixture
    patches: PatchGroups | None
    global_center: float
    global_spread: float


def initialise(
    normals: FeatureRows,
    held_back: FeatureRows,
    n_prototypes: int,
    max_modes: int,
    min_mode_size: int,
    seed: int,
    printed_start: bool = False,
) -> Initialisation:
    """Initialise on training normals; held-back normals decide the shrinkage."""
    standardiser = fit_standardiser(normals)
    z = standardise(standardiser, normals.pooled)
    fitted, tried = fit_modes(z, standardise(standardiser, held_back.pooled), max_modes, min_mode_size, seed)
    prototypes = fit_prototypes(
        z if printed_start else move(fitted.modes, z).psi.numpy(), fitted, n_prototypes, seed, printed_start
    )
    fold = folds(len(z), seed)
    psi = torch.from_numpy(z) if printed_start else move_by_fold(modes_without_fold(z, fitted, fold), z, fold).psi
    with torch.inference_mode():
        nll = -prototypes.log_prob(psi).numpy() / z.shape[1]
    patches = None if printed_start else fit_patch_groups(normals, fitted.labels, seed)
    return Initialisation(standardiser, fitted, tried, prototypes, patches, float(nll.mean()), float(nll.std()))


def build(
    init: Initialisation, normals: FeatureRows, hidden: int, transport_steps: int, top_share: float, seed: int
) -> MPFM:
    """The model before training; the network's first weights come from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MPFM(
            init.standardiser,
            init.fitted.modes,
            init.prototypes,
            init.global_center,
            init.global_spread,
            hidden,
            transport_steps,
            top_share,
            init.patches,
            printed_start=init.patches is None,
        )
    if init.patches is not None:
        labels = torch.from_numpy(init.fitted.labels)
        evidence = [model.local_score.evidence(maps, labels[piece]) for piece, maps in normals.map_batches()]
        model.local_score.standardise_energy(torch.cat([part.energy for part in evidence if part is not None]))
    return model


def fit_standardiser(normals: FeatureRows) -> Standardiser:
    """Centre and spread of pooled statistics, and of the map's channels over all positions."""
    channels = normals.maps.shape[1]
    total, squares, count = torch.zeros(channels).double(), torch.zeros(channels).double(), 0
    for _, maps in normals.map_batches():
        maps = maps.double()  # the difference of squares below needs it
        total, squares = total + maps.sum((0, 2, 3)), squares + maps.square().sum((0, 2, 3))
        count += maps.numel() // maps.shape[1]
    center = total / count
    spread = (squares / count - center.square()).clamp_min(0).sqrt()
    pooled = torch.from_numpy(normals.pooled).double()
    return Standardiser(
        pooled_center=pooled.mean(0).float(),
        pooled_spread=_not_zero(pooled.std(0, correction=0)).float(),
        map_center=center.float(),
        map_spread=_not_zero(spread).float(),
    )


def standardise(standardiser: Standardiser, pooled: np.ndarray) -> np.ndarray:
    """Z of stored statistics, (n, d)."""
    return (pooled - standardiser.pooled_center.numpy()) / standardiser.pooled_spread.numpy()


def move(modes: Modes, z: np.ndarray) -> Start:
    """The closed-form start of many samples, (n, d) → ψ_0 (n, d), log ω_j N (n, J)."""
    with torch.inference_mode():
        starts = [modes.start(piece) for piece in torch.from_numpy(z).float().split(ROWS_AT_ONCE)]
    return Start(*(torch.cat(parts) for parts in zip(*starts, strict=True)))


def move_by_fold(partial: list[Modes], z: np.ndarray, fold: np.ndarray) -> Start:
    """The start of each sample by the modes that were fitted without its fold."""
    psi = torch.empty(z.shape)
    log_prob = torch.empty(len(z), partial[0].n_modes)
    for number, modes in enumerate(partial):
        if (fold == number).any():
            psi[fold == number], log_prob[fold == number] = move(modes, z[fold == number])
    return Start(psi, log_prob)


def fit_prototypes(
    psi: np.ndarray, fitted: FittedModes, n_prototypes: int, seed: int, printed_start: bool
) -> PrototypeMixture:
    """K-means++ on the moved normals: μ_k the centres, π_k the shares.

    With a closed-form start each mode gets its share of the prototypes and s is the transport's own scale, 1: the
    inertia of normals that the whitening was fitted to is far too small when N < d. Printed: one K-means on raw z
    and s² = inertia / (d N).
    """
    if n_prototypes > len(psi):
        logger.info("%d prototypes for %d normals are too many: %d are used", n_prototypes, len(psi), len(psi))
        n_prototypes = len(psi)
    if printed_start:
        center, share, inertia = _cluster(psi, n_prototypes, seed)
        return PrototypeMixture(_tensor(center), _tensor(share), float(np.sqrt(max(inertia, 1e-12) / psi.size)))
    centers, shares, volumes = [], [], []
    for j, number in enumerate(_allot(n_prototypes, fitted.labels, fitted.modes.n_modes)):
        own = psi[fitted.labels == j]
        center, share, _ = _cluster(own, number, seed)
        centers.append(center)
        shares.append(share * len(own) / len(psi))
        volumes.append(fitted.modes.log_det[j].repeat(len(center)))
    return PrototypeMixture(_tensor(np.concatenate(centers)), _tensor(np.concatenate(shares)), 1.0, torch.cat(volumes))


def _cluster(psi: np.ndarray, number: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Centres, shares and inertia of K-means++; clusters that repeated images leave empty are dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        means = KMeans(number, n_init=1, random_state=seed).fit(psi)
    size = np.bincount(means.labels_, minlength=number)
    return means.cluster_centers_[size > 0], size[size > 0] / len(psi), float(means.inertia_)


def _allot(n_prototypes: int, labels: np.ndarray, n_modes: int) -> list[int]:
    """Prototypes of each mode: in proportion to its normals, at least one, never more than it has."""
    size = np.bincount(labels, minlength=n_modes)
    wanted = np.maximum(1, np.floor(n_prototypes * size / len(labels))).astype(int)
    while wanted.sum() < n_prototypes and (wanted < size).any():
        wanted[np.argmax(np.where(wanted < size, size / wanted, -1))] += 1
    return np.minimum(wanted, size).tolist()


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array)).float()


def _not_zero(spread: Tensor) -> Tensor:
    """A constant feature keeps its scale."""
    return torch.where(spread > 1e-6, spread, torch.ones_like(spread))
