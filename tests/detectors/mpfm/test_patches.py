import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.mpfm.patches import (
    PatchPrototypes,
    mean_of_top,
    position_scale,
    to_patches,
    top_positions,
)

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
