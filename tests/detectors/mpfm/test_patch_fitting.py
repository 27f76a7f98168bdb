import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.patches import SHRINKAGE, SmoothedPatches, fit_patch_prototypes, k_centre, to_patches
from small_mpfm import CPU

C, SIDE = 3, 5


def patch_maps(n=40, seed=0):
    """Maps of two modes with patches of other means and covariances."""
    mode = torch.arange(n) % 2
    turn = torch.tensor([[[1, 0.4, 0], [0, 0.8, 0.3], [0, 0, 0.5]], [[0.5, 0, 0.2], [0, 1.5, 0], [0, 0.6, 1]]])
    noise = torch.randn(n, C, SIDE * SIDE, generator=torch.Generator().manual_seed(seed))
    maps = (turn[mode] @ noise).view(n, C, SIDE, SIDE) + 3 * mode[:, None, None, None]
    return maps.half().float(), mode


def fits(maps, mode, fold, n_prototypes=30, seed=0, n_modes=2, memory=1 << 30):
    place = np.arange(len(maps))
    rows = FeatureRows(np.zeros((len(maps), 1)), maps.half().numpy(), place, place)
    return fit_patch_prototypes(SmoothedPatches(rows, CPU, memory), fold, mode.numpy(), n_modes, n_prototypes, seed)


def fitted(maps, mode, *args, **named):
    return fits(maps, mode, np.arange(len(maps)) % 2, *args, **named)[-1]


def energy(prototypes, maps, mode):
    return prototypes.squares(to_patches(maps), mode).sum(2)


def number(prototypes):
    return (~prototypes.unused).sum(1).tolist()


def test_whitening_is_the_inverse_root_of_the_shrunk_covariance():
    maps, mode = patch_maps(60)
    prototypes = fitted(maps, mode)
    for j in range(2):
        covariance = to_patches(maps[mode == j]).flatten(0, 1).double().T.cov(correction=0)
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * covariance.trace() / C * torch.eye(C)
        whitening = prototypes.whitening[j].double()
        torch.testing.assert_close(whitening @ shrunk @ whitening.T, torch.eye(C).double(), rtol=0, atol=1e-3)


def greedy(points, wanted):
    """Farthest-first by loops, in whole numbers."""
    points = points.astype(int)
    chosen = [int(np.square(points).sum(1).argmin())]
    while len(chosen) < wanted:
        distance = np.square(points[:, None] - points[chosen]).sum(2).min(1)
        if not distance.any():
            break
        chosen.append(int(distance.argmax()))
    return chosen


WHOLE = hnp.arrays(np.int8, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.integers(-9, 9))


@settings(deadline=None, max_examples=60)
@given(WHOLE, st.integers(1, 12))
def test_each_chosen_point_is_the_farthest_from_those_before_and_copies_are_not_chosen(points, wanted):
    assert k_centre(torch.from_numpy(points).float(), wanted).tolist() == greedy(points, wanted)
    distinct = torch.randn(len(points), 32, generator=torch.Generator().manual_seed(wanted))
    found = k_centre(distinct.repeat(3, 1), 99).tolist()
    assert sorted(i % len(points) for i in found) == list(range(len(points)))


@pytest.mark.parametrize("sizes", [(30, 10), (39, 1), (40, 0)])
def test_each_mode_gets_its_share_of_the_prototypes_and_an_empty_one_is_fitted_to_all(sizes):
    maps, _ = patch_maps(40)
    prototypes = fitted(maps, torch.arange(2).repeat_interleave(torch.tensor(sizes)), n_prototypes=40)
    assert number(prototypes) == [sizes[0], max(1, sizes[1])]
    assert energy(prototypes, maps, torch.ones(40, dtype=torch.long)).isfinite().all()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_repeated_or_constant_normals_are_enough(n):
    maps, mode = patch_maps(n)[0], torch.zeros(12, dtype=torch.long)
    assert number(fitted(maps, mode[:n], n_prototypes=7, n_modes=1)) == [7]
    repeated = fitted(maps.repeat(3, 1, 1, 1), mode[: 3 * n], n_prototypes=500, n_modes=1)
    assert number(repeated) == [n * SIDE**2] and energy(repeated, maps, mode[:n]).max() < 1e-3
    constant = fitted(torch.full_like(maps, 2.0), mode[:n], n_modes=1)
    assert energy(constant, maps, mode[:n]).isfinite().all()


def many_fits(memory, seed=0):
    maps, mode = patch_maps(40)
    fold = np.arange(40) % 3
    return maps, mode, fold, fits(maps, mode, fold, memory=memory, seed=seed)


def test_a_fit_without_a_fold_has_none_of_its_patches():
    maps, mode, fold, found = many_fits(1 << 30)
    assert len(found) == 4
    for number, prototypes in enumerate(found):
        kept = fold != number
        alone = fitted(maps[kept], mode[kept])
        torch.testing.assert_close(prototypes.whitening, alone.whitening, rtol=1e-3, atol=1e-3)
        assert kept.all() or energy(prototypes, maps[~kept], mode[~kept]).min() > 0


def test_patches_that_do_not_fit_in_memory_give_the_same_bits_and_another_seed_does_not():
    *_, kept_in_memory = many_fits(1 << 30)
    *_, read_again = many_fits(0)
    *_, other = many_fits(0, seed=1)
    assert not torch.equal(kept_in_memory[0].mean, other[0].mean)
    for first, second in zip(kept_in_memory, read_again, strict=True):
        assert all(torch.equal(getattr(second, name), value) for name, value in first.named_buffers())
