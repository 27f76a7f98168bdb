import numpy as np
import pytest
import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.patches import (
    MAX_GROUPS,
    NORMALS_OF_THE_PRIOR,
    PATCHES_PER_CHANNEL,
    SHRINKAGE,
    PatchGroups,
    fit_patch_groups,
    nearest_group,
    smooth,
)

CHANNELS, SIDE = 3, 5


def patch_maps(n=40, seed=0, parts=1):
    """Maps of two modes with patches of other means and covariances; the lower rows may be another part."""
    generator = torch.Generator().manual_seed(seed)
    mode = torch.arange(n) % 2
    turn = torch.tensor(
        [[[1.0, 0.4, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.5]], [[0.5, 0.0, 0.2], [0.0, 1.5, 0.0], [0.0, 0.6, 1.0]]]
    )
    noise = torch.randn(n, CHANNELS, SIDE * SIDE, generator=generator)
    maps = (turn[mode] @ noise).view(n, CHANNELS, SIDE, SIDE) + 3 * mode[:, None, None, None]
    if parts == 2:
        maps[:, :, 3:] = 0.2 * maps[:, :, 3:] + 12
    return maps.half().float(), mode


def fitted(maps, mode, seed=0):
    rows = FeatureRows(np.zeros((len(maps), 1)), maps.half().numpy(), np.arange(len(maps)), np.arange(len(maps)))
    return fit_patch_groups(rows, mode.numpy(), seed)


def test_smoothing_averages_the_neighbours_inside_the_map():
    maps = torch.randn(2, 3, 5, 6)
    found = smooth(maps.half())
    assert found.shape == maps.shape
    torch.testing.assert_close(found[1, 2, 2, 3], maps[1, 2, 1:4, 2:5].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(found[0, 1, 0, 0], maps[0, 1, :2, :2].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(smooth(torch.ones(1, 1, 3, 3)), torch.ones(1, 1, 3, 3))


@pytest.mark.parametrize("parts", [1, 2])
def test_energy_is_the_mahalanobis_distance_to_the_nearest_group_of_the_mode(parts):
    maps, mode = patch_maps(parts=parts)
    groups = fitted(maps, mode)
    new, new_mode = patch_maps(6, seed=1, parts=parts)
    energy = groups.energy(smooth(new), new_mode)
    assert energy.shape == (6, SIDE, SIDE)
    for j in range(2):
        own = smooth(maps[mode == j]).permute(0, 2, 3, 1).flatten(0, 2)
        of_own = nearest_group(own, groups.mean[j]).numpy()
        for image, found in zip(smooth(new[new_mode == j]), energy[new_mode == j], strict=True):
            for y, x in np.ndindex(SIDE, SIDE):
                g = int((groups.mean[j] - image[:, y, x]).square().sum(1).argmin())
                around = (own - groups.mean[j, g]).double().numpy()[of_own == g]
                covariance = around.T @ around / len(around)
                level = np.trace(covariance) / CHANNELS
                shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * level * np.eye(CHANNELS)
                offset = (image[:, y, x] - groups.mean[j, g]).double().numpy()
                distance = offset @ np.linalg.inv(shrunk) @ offset / CHANNELS
                assert found[y, x].item() == pytest.approx(distance / groups.scale[j, y, x].item(), rel=2e-3)


def test_groups_are_the_parts_of_the_image():
    maps, mode = patch_maps(200, parts=2)
    groups = fitted(maps, mode)
    inside = smooth(maps[mode == 0])
    upper, lower = (nearest_group(inside[:, :, row].transpose(1, 2).flatten(0, 1), groups.mean[0]) for row in (0, 4))
    assert not set(upper.tolist()) & set(lower.tolist())


@pytest.mark.parametrize(("n", "expected"), [(4, 1), (6, 2), (2000, MAX_GROUPS)])
def test_there_are_as_many_groups_as_the_patches_allow(n, expected):
    maps, _ = patch_maps(n)
    groups = fitted(maps, torch.zeros(n, dtype=torch.long))
    assert groups.n_groups.tolist() == [expected]
    assert groups.mean.shape == (1, expected, CHANNELS)


@pytest.mark.parametrize("n", [30, 60, 300])
def test_no_group_is_too_small_for_its_covariance(n):
    maps, _ = patch_maps(n)
    maps[:5, :, 2, 2] += 40  # a few patches far away, which K-means would keep as a group of their own
    groups = fitted(maps, torch.zeros(n, dtype=torch.long))
    patches = smooth(maps).permute(0, 2, 3, 1).flatten(0, 2)
    size = nearest_group(patches, groups.mean[0, : groups.n_groups[0]]).bincount()
    assert size.min() >= PATCHES_PER_CHANNEL / 2 * CHANNELS


def test_modes_with_fewer_groups_use_their_own_alone():
    channels, n = 384, 60  # as of a ResNet-18, where equal columns of a product differ by rounding
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(n, channels, 28, 28, generator=generator)
    maps[:, :, :14] += 3 * torch.randn(channels, 1, 1, generator=generator)
    mode = (torch.arange(n) >= 42).long()
    groups = fitted(maps, mode)
    few, many = sorted(groups.n_groups.tolist())
    assert 1 <= few < many
    assert groups.n_groups.tolist() == [many, few]
    groups.whitening[1, few:] = float("nan")
    groups.mean[1, few:] = float("nan")
    assert groups.energy(smooth(maps[-4:]), mode[-4:]).isfinite().all()


def test_energy_of_the_fitted_patches_is_near_one_everywhere():
    maps, mode = patch_maps(400)
    maps[:, :, 1, 2] *= 4
    groups = fitted(maps, mode)
    for j in range(2):
        energy = groups.energy(smooth(maps[mode == j]), mode[mode == j]).mean(0)
        share = 200 / (200 + NORMALS_OF_THE_PRIOR)
        torch.testing.assert_close(groups.scale[j], (energy * groups.scale[j]) ** share, rtol=1e-3, atol=1e-3)
        assert energy.mean().item() == pytest.approx(1, abs=0.2)


def test_a_distance_means_less_where_normals_vary():
    scale = torch.ones(2, SIDE, SIDE)
    scale[1, 3, 0] = 4
    groups = PatchGroups(torch.ones(2), torch.zeros(2, 1, CHANNELS), torch.eye(CHANNELS).expand(2, 1, -1, -1), scale)
    energy = groups.energy(torch.full((2, CHANNELS, SIDE, SIDE), 2.0), torch.tensor([0, 1]))
    torch.testing.assert_close(energy, 4 / scale)


def test_the_same_seed_gives_the_same_groups():
    maps, mode = patch_maps(100)
    first, second = fitted(maps, mode, 3), fitted(maps, mode, 3)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.whitening, second.whitening)


def test_constant_patches_leave_a_finite_energy():
    maps = torch.full((30, 3, 5, 5), 2.0)
    groups = fitted(maps, torch.zeros(30, dtype=torch.long))
    assert groups.energy(torch.randn(2, 3, 5, 5), torch.zeros(2, dtype=torch.long)).isfinite().all()
    assert groups.energy(smooth(maps[:2]), torch.zeros(2, dtype=torch.long)).max() < 1


def test_a_small_defect_raises_the_energy_where_it_is():
    maps, mode = patch_maps()
    groups = fitted(maps, mode)
    new, new_mode = patch_maps(1, seed=2)
    new[0, :, 3, 1] += 8
    highest = groups.energy(smooth(new), new_mode)[0].flatten().argmax().item()
    assert abs(highest // 5 - 3) <= 1
    assert abs(highest % 5 - 1) <= 1


def test_patch_groups_have_nothing_to_train():
    assert list(fitted(*patch_maps()).parameters()) == []
