import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.patch_fitting import (
    SHRINKAGE,
    SmoothedPatches,
    farthest_first,
    fit_patch_prototypes,
)
from mpfm_kedro.detectors.mpfm.patches import PatchPrototypes, position_scale, smooth, to_patches

CPU = torch.device("cpu")

CHANNELS, SIDE = 3, 5


def patch_maps(n=40, seed=0):
    """Maps of two modes with patches of other means and covariances."""
    generator = torch.Generator().manual_seed(seed)
    mode = torch.arange(n) % 2
    turn = torch.tensor(
        [[[1.0, 0.4, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.5]], [[0.5, 0.0, 0.2], [0.0, 1.5, 0.0], [0.0, 0.6, 1.0]]]
    )
    noise = torch.randn(n, CHANNELS, SIDE * SIDE, generator=generator)
    maps = (turn[mode] @ noise).view(n, CHANNELS, SIDE, SIDE) + 3 * mode[:, None, None, None]
    return maps.half().float(), mode


def fitted(maps, mode, n_prototypes=30, seed=0, n_modes=None):
    rows = FeatureRows(np.zeros((len(maps), 1)), maps.half().numpy(), np.arange(len(maps)), np.arange(len(maps)))
    (found,) = fit_patch_prototypes(
        SmoothedPatches(rows, CPU, 1 << 30),
        np.ones((1, len(maps)), dtype=bool),
        mode.numpy(),
        n_modes or int(mode.max()) + 1,
        n_prototypes,
        seed,
    )
    return found


def plain(n_modes=1, scale=None):
    """One prototype in the origin of every mode, and no whitening."""
    ones = torch.ones(n_modes, SIDE, SIDE) if scale is None else scale
    whitening = torch.eye(CHANNELS).repeat(n_modes, 1, 1)
    zeros = torch.zeros(n_modes, CHANNELS)
    return PatchPrototypes(torch.ones(n_modes), zeros, whitening, zeros[:, None], ones)


def test_smoothing_averages_the_neighbours_inside_the_map():
    maps = torch.randn(2, 3, 5, 6)
    found = smooth(maps.half())
    assert found.shape == maps.shape
    torch.testing.assert_close(found[1, 2, 2, 3], maps[1, 2, 1:4, 2:5].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(found[0, 1, 0, 0], maps[0, 1, :2, :2].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(smooth(torch.ones(1, 1, 3, 3)), torch.ones(1, 1, 3, 3))


def test_energy_is_the_distance_to_the_nearest_prototype_of_the_mode():
    maps, mode = patch_maps()
    prototypes = fitted(maps, mode)
    prototypes.scale.copy_(torch.rand(2, SIDE, SIDE) + 0.5)
    new, new_mode = patch_maps(6, seed=1)
    energy = prototypes.energy(smooth(new), new_mode)
    assert energy.shape == (6, SIDE, SIDE)
    for i, j in enumerate(new_mode.tolist()):
        image = smooth(new[i : i + 1])[0].double().numpy()
        for y, x in np.ndindex(SIDE, SIDE):
            psi = prototypes.whitening[j].double().numpy() @ (image[:, y, x] - prototypes.center[j].numpy())
            own = prototypes.mean[j, : prototypes.number[j]].numpy()
            expected = min(np.square(psi - mu).sum() for mu in own) / CHANNELS / prototypes.scale[j, y, x].item()
            assert energy[i, y, x].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("j", [0, 1])
def test_energy_of_a_prototype_is_zero(j):
    prototypes = fitted(*patch_maps())
    own = prototypes.mean[j, : prototypes.number[j]]
    patches = own @ torch.linalg.inv(prototypes.whitening[j]).T + prototypes.center[j]
    maps = patches.T[None, :, None, :1].expand(1, -1, SIDE, SIDE)
    assert prototypes.energy(maps, torch.tensor([j])).abs().max() < 1e-4


def test_prototypes_for_every_patch_leave_normals_without_energy():
    maps, mode = patch_maps(8)
    prototypes = fitted(maps, mode, n_prototypes=10_000)
    assert prototypes.number.tolist() == [4 * SIDE**2] * 2
    assert prototypes.energy(smooth(maps), mode).max() < 1e-3
    new, new_mode = patch_maps(8, seed=1)
    assert prototypes.energy(smooth(new), new_mode).mean() > 0.01


def test_whitening_is_the_inverse_root_of_the_shrunk_covariance():
    maps, mode = patch_maps(60)
    prototypes = fitted(maps, mode)
    for j in range(2):
        patches = to_patches(smooth(maps[mode == j])).double()
        covariance = patches.T.cov(correction=0)
        level = covariance.trace() / CHANNELS
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * level * torch.eye(CHANNELS)
        whitening = prototypes.whitening[j].double()
        identity = torch.eye(CHANNELS, dtype=torch.float64)
        torch.testing.assert_close(whitening @ shrunk @ whitening.T, identity, rtol=0, atol=1e-3)
        psi = prototypes.whiten(j, patches.float())
        torch.testing.assert_close(psi.mean(0), torch.zeros(CHANNELS), rtol=0, atol=1e-3)
        expected = whitening @ covariance @ whitening.T
        torch.testing.assert_close(psi.T.cov(correction=0).double(), expected, rtol=0, atol=1e-3)


def test_energy_does_not_depend_on_the_units_of_the_channels():
    maps, mode = patch_maps(60)
    new, new_mode = patch_maps(5, seed=1)
    rotation = torch.linalg.qr(torch.randn(CHANNELS, CHANNELS, generator=torch.Generator().manual_seed(0))).Q
    turned, turned_new = (torch.einsum("ij,njyx->niyx", 4 * rotation, one) + 2 for one in (maps, new))
    first = fitted(maps, mode, 10_000).energy(smooth(new), new_mode)
    second = fitted(turned, mode, 10_000).energy(smooth(turned_new), new_mode)
    torch.testing.assert_close(first, second, rtol=0.05, atol=0.02)


def greedy(points, number):
    """Farthest-first by loops, in whole numbers."""
    points = [[int(value) for value in point] for point in points]
    chosen = [min(range(len(points)), key=lambda i: sum(value**2 for value in points[i]))]
    while len(chosen) < number:
        distance = [min(sum((a - b) ** 2 for a, b in zip(p, points[c], strict=True)) for c in chosen) for p in points]
        farthest = max(range(len(points)), key=lambda i: distance[i])
        if distance[farthest] == 0:
            break
        chosen.append(farthest)
    return chosen


WHOLE = hnp.arrays(np.int8, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.integers(-9, 9))


@settings(deadline=None, max_examples=80)
@given(WHOLE, st.integers(1, 12))
def test_each_chosen_point_is_the_farthest_from_those_before(points, number):
    found = farthest_first(torch.from_numpy(points).float(), number).tolist()
    assert found == greedy(points, number)
    assert len(set(found)) == len(found)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5), st.floats(0.01, 100))
def test_copies_of_points_are_not_chosen(seed, distinct, copies, size):
    points = size * torch.randn(distinct, 32, generator=torch.Generator().manual_seed(seed))
    found = farthest_first(points.repeat(copies, 1), 20).tolist()
    assert sorted(i % distinct for i in found) == list(range(distinct))


def test_rare_patches_get_prototypes():
    maps, _ = patch_maps(60)
    maps[:2, :, 1:4, 1:4] += 6
    mode = torch.zeros(60, dtype=torch.long)
    few = fitted(maps, mode, n_prototypes=20)
    rare = few.whiten(0, smooth(maps[:2])[:, :, 2, 2])
    assert torch.cdist(rare, few.mean[0]).min(1).values.max() < 0.5 * rare.norm(dim=1).min()


@pytest.mark.parametrize("sizes", [(30, 10), (39, 1)])
def test_each_mode_gets_its_share_of_the_prototypes(sizes):
    maps, _ = patch_maps(40)
    prototypes = fitted(maps, torch.arange(2).repeat_interleave(torch.tensor(sizes)), n_prototypes=40)
    assert prototypes.number.tolist() == list(sizes)


def test_what_stands_behind_the_prototypes_of_a_mode_is_not_used():
    maps, mode = patch_maps(40)
    mode = (torch.arange(40) >= 30).long()
    prototypes = fitted(maps, mode, n_prototypes=40)
    prototypes.mean[1, prototypes.number[1] :] = float("nan")
    assert prototypes.energy(smooth(maps), mode).isfinite().all()


def test_a_mode_without_normals_has_the_prototypes_of_all():
    maps, _ = patch_maps(20)
    mode = torch.zeros(20, dtype=torch.long)
    prototypes = fitted(maps, mode, n_modes=2)
    new, _ = patch_maps(4, seed=1)
    alone = fitted(maps, mode, n_modes=1).energy(smooth(new), mode[:4])
    assert prototypes.scale.shape == (2, SIDE, SIDE)
    torch.testing.assert_close(prototypes.energy(smooth(new), mode[:4]), alone)
    assert prototypes.energy(smooth(new), mode[:4] + 1).isfinite().all()


def test_scale_is_half_the_quantile_there_and_half_the_mean_quantile():
    level = torch.tensor([[1.0, 2.0], [3.0, 10.0]])
    energy = torch.arange(11.0)[:, None, None] * level  # the 0.9 quantile of 0, …, 10 is 9
    scale = position_scale(torch.cat([energy, 2 * energy]), torch.arange(2).repeat_interleave(11), 2)
    torch.testing.assert_close(scale[0], 9 * (level + 4) / 2)
    torch.testing.assert_close(scale[1], 2 * scale[0])


def test_scale_of_a_mode_without_unseen_normals_is_that_of_all():
    energy = torch.rand(20, 3, 4, generator=torch.Generator().manual_seed(0))
    scale = position_scale(energy, torch.zeros(20, dtype=torch.long), 2)
    torch.testing.assert_close(scale[1], scale[0])
    assert position_scale(torch.zeros(5, 2, 2), torch.zeros(5, dtype=torch.long), 1).min() > 0


def test_a_distance_means_less_where_normals_vary():
    scale = torch.ones(2, SIDE, SIDE)
    scale[1, 3, 0] = 4
    energy = plain(2, scale).energy(torch.full((2, CHANNELS, SIDE, SIDE), 2.0), torch.tensor([0, 1]))
    torch.testing.assert_close(energy, 4 / scale)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, SIDE - 1), st.integers(0, SIDE - 1), st.integers(0, 1), st.integers(0, 50))
def test_a_small_defect_has_the_highest_energy_where_it_is(row, column, kind, seed):
    prototypes = fitted(*patch_maps())
    new, new_mode = patch_maps(2, seed=seed + 1)
    new[kind, :, row, column] += 12
    highest = prototypes.energy(smooth(new), new_mode)[kind].flatten().argmax().item()
    assert abs(highest // SIDE - row) <= 1
    assert abs(highest % SIDE - column) <= 1


def test_constant_maps_leave_a_finite_energy():
    maps = torch.full((30, 3, 5, 5), 2.0)
    mode = torch.zeros(30, dtype=torch.long)
    prototypes = fitted(maps, mode)
    assert prototypes.energy(torch.randn(2, 3, 5, 5), mode[:2]).isfinite().all()
    assert prototypes.energy(smooth(maps[:2]), mode[:2]).max() < 1


def test_repeated_images_have_the_prototypes_of_one():
    maps, _ = patch_maps(1)
    mode = torch.zeros(9, dtype=torch.long)
    prototypes = fitted(maps.repeat(9, 1, 1, 1), mode, n_prototypes=500)
    assert prototypes.number.tolist() == [SIDE**2]
    assert prototypes.energy(smooth(maps), mode[:1]).max() < 1e-3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_normals_are_enough(n):
    maps, _ = patch_maps(n)
    prototypes = fitted(maps, torch.zeros(n, dtype=torch.long), n_prototypes=7)
    new, _ = patch_maps(4, seed=1)
    assert prototypes.number.tolist() == [7]
    assert prototypes.energy(smooth(new), torch.zeros(4, dtype=torch.long)).isfinite().all()


def test_the_same_seed_gives_the_same_prototypes():
    maps, mode = patch_maps(100)
    first, second, other = (fitted(maps, mode, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.whitening, second.whitening)
    assert not torch.equal(first.mean, other.mean)


def test_patch_prototypes_have_nothing_to_train():
    assert list(fitted(*patch_maps()).parameters()) == []


def many_fits(memory):
    maps, mode = patch_maps(40)
    rows = FeatureRows(np.zeros((40, 1)), maps.half().numpy(), np.arange(40), np.arange(40))
    kept = np.stack([np.ones(40, dtype=bool), np.arange(40) % 5 > 0, np.arange(40) % 5 != 1])
    return maps, mode, kept, fit_patch_prototypes(SmoothedPatches(rows, CPU, memory), kept, mode.numpy(), 2, 30, 0)


def test_fits_without_a_fold_know_nothing_of_it():
    maps, mode, kept, fits = many_fits(1 << 30)
    for own, found in zip(kept, fits, strict=True):
        alone = fitted(maps[own], mode[own])
        for name, value in alone.named_buffers():
            torch.testing.assert_close(getattr(found, name), value, rtol=1e-3, atol=1e-3)


def test_patches_that_do_not_fit_in_memory_give_the_same_bits():
    *_, kept_in_memory = many_fits(1 << 30)
    *_, read_again = many_fits(0)
    for first, second in zip(kept_in_memory, read_again, strict=True):
        for name, value in first.named_buffers():
            assert torch.equal(getattr(second, name), value)
