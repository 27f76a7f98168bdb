import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.baselines.gradient_training import (
    NORMAL,
    PSEUDO,
    SEEN,
    TopPositions,
    balanced_batches,
)


@pytest.mark.parametrize(("pseudo", "normals_in_batch"), [(7, 16), (0, 32)])
def test_batches_are_balanced(pseudo, normals_in_batch):
    """Rows 0–19 are normals, 20–22 known anomalies and all after that pseudo-anomalies; each of them is drawn."""
    batches = list(balanced_batches([20, 3, pseudo], 50, torch.Generator().manual_seed(0)))
    assert len(batches) == 50
    for row, group in batches:
        assert np.bincount(group, minlength=3).tolist() == [normals_in_batch, 16, 32 - normals_in_batch]
        assert torch.equal(torch.bucketize(row, torch.tensor([20, 23]), right=True), group)
    drawn = torch.cat([row for row, _ in batches])
    assert drawn.unique().tolist() == list(range(23 + pseudo))
    assert (NORMAL, SEEN, PSEUDO) == (0, 1, 2)


@pytest.mark.parametrize("absolute", [True, False])
def test_top_positions_and_their_gradient(absolute):
    """Against sorting all positions: 5 of 7 × 8 are 10 %."""
    network, maps = TopPositions(4, 2, absolute=absolute), torch.randn(3, 7, 8, 4)
    scores = network.linear(maps).flatten(1, 2)
    expected = (scores.abs() if absolute else scores).sort(dim=1, descending=True).values[:, :5].mean(1)
    torch.testing.assert_close(network(maps), expected)
    parameters = list(network.parameters())
    weights = torch.tensor([[1.0, 2.0]])
    for one, other in zip(
        torch.autograd.grad((network(maps) * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_map_of_one_position_has_a_top():
    assert TopPositions(4)(torch.randn(2, 1, 1, 4)).shape == (2, 1)
