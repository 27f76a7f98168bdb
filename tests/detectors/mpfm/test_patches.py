import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.patches import (
    SHRINKAGE,
    PatchPrototypes,
    SmoothedPatches,
    fit_patch_prototypes,
    k_centre,
    mean_of_top,
    position_scale,
    to_patches,
    top_positions,
)
from small_mpfm import CPU

B, C, SIDE = 6, 3, 5


def test_smoothing_averages_the_neighbours_inside_the_map():
    maps = torch.randn(2, 3, 5, 6)
    found = to_patches(maps.half())
    torch.testing.assert_close(found[1, 2 * 6 + 3, 2], maps[1, 2, 1:4, 2:5].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(found[0, 0, 1], maps[0, 1, :2, :2].mean(), rtol=0, atol=0.01)


def test_energy_is_the_distance_to_the_nearest_used_prototype_of_the_mode():
    unused = torch.tensor([[False] * 4, [False, False, True, True]])
    whitening, scale = torch.eye(C) + 0.2 * torch.randn(2, C, C), torch.rand(2, SIDE, SIDE) + 0.5
    tensors = {"center": torch.randn(2, C), "whitening": whitening, "mean": torch.randn(2, 4, C), "scale": scale}
    prototypes = PatchPrototypes(unused=unused, **tensors)
    patches, mode = torch.randn(B, SIDE * SIDE, C), torch.arange(B) % 2
    squares, some = prototypes.squares(patches, mode), torch.randint(SIDE * SIDE, (B, 4))
    at_some = prototypes.squares(patches.take_along_dim(some[..., None], 1), mode, some)
    torch.testing.assert_close(at_some, squares.take_along_dim(some[..., None], 1))
    for i, j in enumerate(mode.tolist()):
        psi = (patches[i] - prototypes.center[j]) @ whitening[j].T
        distance = torch.cdist(psi, prototypes.mean[j, : 4 - 2 * j])
        expected = distance.min(1).values.square() / C / scale[j].flatten()
        torch.testing.assert_close(squares[i].sum(1), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("share", "number"), [(0.1, 3), (0.01, 1)])
def test_top_positions_are_the_highest(share, number):
    energy = torch.rand(B, 30)
    found = top_positions(energy, share).sort().values
    np.testing.assert_array_equal(found, energy.argsort(1)[:, -number:].sort().values)
    torch.testing.assert_close(mean_of_top(energy[..., None], share)[:, 0], energy.gather(1, found).mean(1))


def test_scale_is_half_the_quantile_there_and_half_the_mean_quantile():
    level = torch.tensor([[1.0, 2.0], [3.0, 10.0]])
    energy = torch.arange(11.0)[:, None, None] * level  # the 0.9 quantile of 0, …, 10 is 9
    scale = position_scale(torch.cat([energy, 2 * energy]), torch.arange(2).repeat_interleave(11), 2)
    torch.testing.assert_close(scale, 9 * (level + 4) / 2 * torch.tensor([1.0, 2.0])[:, None, None])
    alone = position_scale(energy, torch.zeros(11, dtype=torch.long), 2)  # a mode without normals: that of all
    torch.testing.assert_close(alone[1], alone[0])
    assert position_scale(0 * energy, torch.zeros(11, dtype=torch.long), 1).min() > 0


CHANNELS, WIDTH = 3, 5


def patch_maps(n=40, seed=0):
    """Maps of two modes with patches of other means and covariances."""
    mode = torch.arange(n) % 2
    turn = torch.tensor([[[1, 0.4, 0], [0, 0.8, 0.3], [0, 0, 0.5]], [[0.5, 0, 0.2], [0, 1.5, 0], [0, 0.6, 1]]])
    noise = torch.randn(n, CHANNELS, WIDTH * WIDTH, generator=torch.Generator().manual_seed(seed))
    maps = (turn[mode] @ noise).view(n, CHANNELS, WIDTH, WIDTH) + 3 * mode[:, None, None, None]
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
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * covariance.trace() / CHANNELS * torch.eye(CHANNELS)
        whitening = prototypes.whitening[j].double()
        torch.testing.assert_close(whitening @ shrunk @ whitening.T, torch.eye(CHANNELS).double(), rtol=0, atol=1e-3)


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
    assert number(repeated) == [n * WIDTH**2] and energy(repeated, maps, mode[:n]).max() < 1e-3
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
