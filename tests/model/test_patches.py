import numpy as np
import pytest
import torch

from mpfm_kedro.model.patches import SHRINKAGE, fit_patch_modes, smooth


def patch_maps(n=40, channels=3, side=5, seed=0):
    """Maps of two modes with patches of other means and covariances."""
    generator = torch.Generator().manual_seed(seed)
    mode = torch.arange(n) % 2
    turn = torch.tensor(
        [[[1.0, 0.4, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.5]], [[0.5, 0.0, 0.2], [0.0, 1.5, 0.0], [0.0, 0.6, 1.0]]]
    )
    noise = torch.randn(n, channels, side * side, generator=generator)
    maps = (turn[mode] @ noise).view(n, channels, side, side) + 3 * mode[:, None, None, None]
    return maps, mode


def test_smoothing_averages_the_neighbours_inside_the_map():
    maps = torch.randn(2, 3, 5, 6)
    found = smooth(maps.half())
    assert found.shape == maps.shape
    torch.testing.assert_close(found[1, 2, 2, 3], maps[1, 2, 1:4, 2:5].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(found[0, 1, 0, 0], maps[0, 1, :2, :2].mean(), rtol=0, atol=0.01)
    torch.testing.assert_close(smooth(torch.ones(1, 1, 3, 3)), torch.ones(1, 1, 3, 3))


def test_energy_is_the_mahalanobis_distance_to_the_patches_of_the_mode():
    maps, mode = patch_maps()
    patches = fit_patch_modes([(maps, mode)], 2)
    new, new_mode = patch_maps(6, seed=1)
    energy = patches.energy(new, new_mode)
    assert energy.shape == (6, 5, 5)
    for j in range(2):
        own = smooth(maps[mode == j]).flatten(2).transpose(1, 2).flatten(0, 1).double().numpy()
        covariance = np.cov(own.T, bias=True)
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 3 * np.eye(3)
        offset = smooth(new[new_mode == j]).double().permute(0, 2, 3, 1).numpy() - own.mean(0)
        expected = np.einsum("bhwc,cd,bhwd->bhw", offset, np.linalg.inv(shrunk), offset) / 3
        np.testing.assert_allclose(energy[new_mode == j], expected, rtol=1e-3)


def test_energy_of_the_fitted_patches_is_one_on_average():
    maps, mode = patch_maps(200)
    energy = fit_patch_modes([(maps, mode)], 2).energy(maps, mode)
    for j in range(2):
        assert energy[mode == j].mean().item() == pytest.approx(1, abs=0.03)


def test_fit_does_not_depend_on_the_batches():
    maps, mode = patch_maps()
    whole = fit_patch_modes([(maps, mode)], 2)
    pieces = fit_patch_modes(zip(maps.split(7), mode.split(7), strict=True), 2)
    torch.testing.assert_close(whole.mean, pieces.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole.whitening, pieces.whitening, rtol=1e-3, atol=1e-4)


def test_a_mode_of_constant_patches_leaves_a_finite_energy():
    patches = fit_patch_modes([(torch.full((4, 3, 5, 5), 2.0), torch.zeros(4, dtype=torch.long))], 1)
    assert patches.energy(torch.randn(2, 3, 5, 5), torch.zeros(2, dtype=torch.long)).isfinite().all()


def test_a_small_defect_raises_the_energy_where_it_is():
    maps, mode = patch_maps()
    patches = fit_patch_modes([(maps, mode)], 2)
    new, new_mode = patch_maps(1, seed=2)
    new[0, :, 3, 1] += 8
    highest = patches.energy(new, new_mode)[0].flatten().argmax().item()
    assert abs(highest // 5 - 3) <= 1
    assert abs(highest % 5 - 1) <= 1


def test_patch_modes_have_nothing_to_train():
    maps, mode = patch_maps()
    assert list(fit_patch_modes([(maps, mode)], 2).parameters()) == []
