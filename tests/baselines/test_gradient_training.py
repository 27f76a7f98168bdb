import numpy as np
import pytest
import torch

from mpfm_kedro.baselines.devnet import DevNet
from mpfm_kedro.baselines.gradient_training import (
    NORMAL,
    PSEUDO,
    SEEN,
    StandardisedInput,
    TopPositions,
    balanced_batches,
)


@pytest.mark.parametrize(("pseudo", "normals_in_batch"), [(7, 16), (0, 32)])
def test_batches_are_balanced(pseudo, normals_in_batch):
    """Rows 0–19 are normals, 20–22 known anomalies and all after that pseudo-anomalies; each of them is drawn."""
    batches = list(balanced_batches([20, 3, pseudo], 50, torch.Generator().manual_seed(0)))
    assert len(batches) == 50
    for row, side in batches:
        assert np.bincount(side, minlength=3).tolist() == [normals_in_batch, 16, 32 - normals_in_batch]
        assert torch.equal(torch.bucketize(row, torch.tensor([20, 23]), right=True), side)
    drawn = torch.cat([row for row, _ in batches])
    assert drawn.unique().tolist() == list(range(23 + pseudo))
    assert (NORMAL, SEEN, PSEUDO) == (0, 1, 2)


@pytest.mark.parametrize("kind", ["pooled", "maps"])
def test_normals_are_standardised_by_channel(kind, make_rows):
    """Over more rows than are read at once."""
    normals = make_rows(0, 150)
    scaled = torch.cat(list(StandardisedInput(kind, normals).batches(normals))).flatten(0, -2)
    assert scaled.shape[1] == {"pooled": 24, "maps": 16}[kind]
    torch.testing.assert_close(scaled.mean(0), torch.zeros(scaled.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(scaled.shape[1]), atol=1e-4, rtol=0)


def test_a_column_that_is_constant_among_normals_is_not_blown_up(make_rows):
    normals, others = make_rows(0, 10), make_rows(1, 10)
    normals.pooled[:, 0] = 0
    (scaled,) = StandardisedInput("pooled", normals).batches(others)
    assert scaled[:, 0].abs().max() < 100


def test_maps_keep_their_channels_and_rows(make_rows):
    rows = make_rows(0, 70).take(np.arange(69, -1, -1))
    given = StandardisedInput("maps", rows)
    held = given.held([rows, rows.take(np.arange(2))], torch.device("cpu"))
    stored = held.batch(torch.tensor([68, 71] * 24)) * given.spread + given.center
    expected = torch.from_numpy(rows.maps[[1, 68] * 24]).float().permute(0, 2, 3, 1)
    torch.testing.assert_close(stored, expected, atol=0.01, rtol=0)


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


def test_no_known_anomalies_is_an_error(brief_scores):
    with pytest.raises(ValueError, match=r"DevNet learns from normals and known anomalies.*0 known"):
        brief_scores(DevNet, known=0)
