import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.heads import GlobalScore, LinearScore, LocalScore
from mpfm_kedro.detectors.mpfm.patches import fit_patch_groups, smooth


def local(channels, top_share, seed=0, patches=None):
    generator = torch.Generator().manual_seed(seed)
    center, spread = torch.randn(channels, generator=generator), torch.rand(channels, generator=generator) + 0.5
    head = LocalScore(center, spread, top_share, patches)
    with torch.no_grad():
        head.weight.copy_(torch.randn(channels, generator=generator))
        head.bias.fill_(0.3)
    return head


def patch_groups(channels, n_modes=2, height=6, width=6):
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(20, channels, height, width)) + 0.5 * np.arange(channels)[:, None, None]
    rows = FeatureRows(np.zeros((20, 1)), maps.astype(np.float16), np.arange(20), np.arange(20))
    return fit_patch_groups(rows, np.arange(20) % n_modes, 0)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 7), st.integers(1, 7), st.sampled_from([0.05, 0.25, 0.5, 1.0]))
def test_printed_local_score_is_the_mean_of_the_highest_positions(seed, height, width, top_share):
    head = local(3, top_share, seed)
    maps = torch.randn(4, 3, height, width, generator=torch.Generator().manual_seed(seed))
    standardised = ((maps - head.center[:, None, None]) / head.spread[:, None, None]).numpy()
    weight = head.weight.detach().numpy()
    for image, score in zip(standardised, head(maps, None).tolist(), strict=True):
        positions = sorted(float(image[:, y, x] @ weight) + 0.3 for y in range(height) for x in range(width))
        top = positions[-max(1, int(top_share * height * width)) :]
        assert score == pytest.approx(np.mean(top), abs=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.integers(2, 7), st.integers(2, 7), st.sampled_from([0.05, 0.25, 0.5, 1.0]))
def test_local_score_is_the_mean_of_the_heat_map_where_patches_are_most_unusual(seed, height, width, top_share):
    patches = patch_groups(3, height=height, width=width)
    head = local(3, top_share, seed, patches)
    maps = torch.randn(4, 3, height, width, generator=torch.Generator().manual_seed(seed))
    mode = torch.tensor([0, 1, 1, 0])
    scores, heat = head(None, head.evidence(maps, mode)), head.heat_map(maps, mode)
    for i in range(4):
        energy = patches.energy(smooth(maps[i : i + 1]), mode[i : i + 1]).flatten().tolist()
        order = sorted(range(len(energy)), key=lambda position, energy=energy: -energy[position])
        top = order[: max(1, int(top_share * len(energy)))]
        assert scores[i].item() == pytest.approx(heat[i].flatten()[top].mean().item(), abs=1e-4)


def test_untrained_local_score_is_the_energy_of_the_most_unusual_patches():
    patches = patch_groups(3, height=4, width=4)
    head = LocalScore(torch.zeros(3), torch.ones(3), 0.25, patches)
    maps, mode = torch.randn(5, 3, 4, 4), torch.zeros(5, dtype=torch.long)
    energy = patches.energy(smooth(maps), mode).flatten(1).sort(1, descending=True).values[:, :4]
    torch.testing.assert_close(head(None, head.evidence(maps, mode)), energy.mean(1))


def test_printed_local_score_has_no_evidence_beside_the_maps():
    assert local(3, 0.1).evidence(torch.randn(2, 3, 4, 4), torch.zeros(2)) is None


@pytest.mark.parametrize("patches", [None, patch_groups(5, height=6, width=8)])
def test_heat_map_shows_where_the_evidence_is(patches):
    head = local(5, 0.1, patches=patches)
    plain = torch.zeros(5) + head.center if patches is None else patches.mean[0, 0]
    maps = plain[:, None, None].repeat(1, 6, 8).repeat(2, 1, 1, 1)
    maps[0, :, 2, 7] += 20 * head.weight.detach() * head.spread
    heat = head.heat_map(maps, torch.zeros(2, dtype=torch.long))
    assert heat.shape == (2, 6, 8)
    highest = heat[0].flatten().argmax().item()
    assert (abs(highest // 8 - 2), abs(highest % 8 - 7)) <= ((0, 0) if patches is None else (1, 1))
    torch.testing.assert_close(heat[1], heat[1, 0, 0].expand(6, 8), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("patches", [None, patch_groups(4, height=5, width=5)])
def test_local_score_takes_maps_as_they_are_stored(patches):
    head = local(4, 0.5, patches=patches)
    maps, mode = torch.randn(3, 4, 5, 5), torch.zeros(3, dtype=torch.long)
    stored, exact = (head(kind, head.evidence(kind, mode)) for kind in (maps.half(), maps))
    torch.testing.assert_close(stored, exact, rtol=0.01, atol=0.02)


def test_printed_local_score_learns_a_bright_spot_from_any_draw():
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        maps = torch.randn(64, 4, 6, 6, generator=generator)
        label = torch.arange(64) % 2
        maps[label == 1, 0, 1, 2] += 5
        head = LocalScore(torch.zeros(4), torch.ones(4), 0.1)
        optimiser = torch.optim.AdamW(head.parameters(), lr=0.02)
        for _ in range(60):
            optimiser.zero_grad()
            binary_cross_entropy_with_logits(head(maps, None), label.float()).backward()
            optimiser.step()
        assert roc_auc_score(label, head(maps, None).detach()) > 0.9, seed


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


def test_linear_and_printed_local_scores_start_at_zero():
    assert LinearScore(7)(torch.randn(5, 7)).tolist() == [0.0] * 5
    assert LocalScore(torch.zeros(3), torch.ones(3), 0.1)(torch.randn(5, 3, 4, 4), None).tolist() == [0.0] * 5


def test_linear_score_is_linear():
    head = LinearScore(4)
    torch.nn.init.normal_(head.linear.weight)
    x, y = torch.randn(2, 3, 4)
    torch.testing.assert_close(head(2 * x - y), 2 * head(x) - head(y))
