import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.model.heads import GlobalScore, LinearScore, LocalScore


def local(channels, top_share, seed=0):
    head = LocalScore(channels, top_share)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.position.weight.copy_(torch.randn(1, channels, generator=generator))
        head.position.bias.fill_(0.3)
    return head


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 7), st.integers(1, 7), st.sampled_from([0.05, 0.25, 0.5, 1.0]))
def test_local_score_is_the_mean_of_the_highest_positions(seed, height, width, top_share):
    head = local(3, top_share, seed)
    maps = torch.randn(4, 3, height, width, generator=torch.Generator().manual_seed(seed))
    weight, bias = head.position.weight[0].detach().numpy(), head.position.bias.item()
    for image, score in zip(maps.numpy(), head(maps).tolist(), strict=True):
        positions = sorted(float(image[:, y, x] @ weight) + bias for y in range(height) for x in range(width))
        top = positions[-max(1, int(top_share * height * width)) :]
        assert score == pytest.approx(np.mean(top), abs=1e-4)


def test_heat_map_shows_where_the_evidence_is():
    head = local(5, 0.1)
    maps = torch.zeros(2, 5, 6, 8)
    maps[0, :, 2, 7] = head.position.weight[0].detach()
    heat = head.heat_map(maps)
    assert heat.shape == (2, 6, 8)
    assert heat[0].flatten().argmax() == 2 * 8 + 7
    torch.testing.assert_close(heat[1], torch.full((6, 8), 0.3))


@settings(deadline=None, max_examples=30)
@given(st.floats(-5, 5), st.floats(0, 3), st.floats(-4, 4), st.floats(-4, 4))
def test_global_score_keeps_the_order(center, spread, slope, offset):
    head = GlobalScore(center, spread)
    with torch.no_grad():
        head.slope.fill_(slope)
        head.offset.fill_(offset)
    scores = head(torch.linspace(center - 2, center + 2, 9))
    assert (scores.diff() > 0).all()


def test_global_score_starts_as_the_standardised_energy():
    energy = torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(GlobalScore(2.0, 0.5)(energy), torch.tensor([-2.0, 0.0, 4.0]))


def test_global_score_of_normals_without_spread_is_finite():
    assert GlobalScore(1.0, 0.0)(torch.tensor([1.0, 1.1])).isfinite().all()


def test_linear_and_local_scores_start_at_zero():
    assert LinearScore(7)(torch.randn(5, 7)).tolist() == [0.0] * 5
    assert LocalScore(3, 0.1)(torch.randn(5, 3, 4, 4)).tolist() == [0.0] * 5


def test_linear_score_is_linear():
    head = LinearScore(4)
    torch.nn.init.normal_(head.linear.weight)
    x, y = torch.randn(2, 3, 4)
    torch.testing.assert_close(head(2 * x - y), 2 * head(x) - head(y))
