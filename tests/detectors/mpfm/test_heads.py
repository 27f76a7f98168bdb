import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.inputs import StandardisedInput
from mpfm_kedro.detectors.mpfm.heads import (
    DECAY,
    DECAYS,
    LEARNING_RATE,
    MARGIN,
    PENALTY,
    WEIGHT_DECAY,
    TopPositions,
    Training,
    deviation_loss,
    fit_linear,
    fit_top_positions,
    top_number,
    weighted_sums,
)

CHANNELS, HEIGHT, WIDTH = 4, 3, 5
CPU = torch.device("cpu")


def rows_of(maps):
    n = len(maps)
    return FeatureRows(np.zeros((n, 2), np.float32), maps.astype(np.float16), np.arange(n), np.arange(n))


def images(n, seed=0, spot=0.0):
    """Maps of noise, with a bright spot anywhere in the second channel."""
    rng = np.random.default_rng(seed)
    maps = rng.normal(size=(n, CHANNELS, HEIGHT, WIDTH)) * np.array([1.0, 0.5, 2.0, 1.0])[:, None, None]
    maps[np.arange(n), 1, rng.integers(HEIGHT, size=n), rng.integers(WIDTH, size=n)] += spot
    return maps


def everything(n_heads, n, m):
    return np.ones((n_heads, n), dtype=bool), np.ones((n_heads, m), dtype=bool)


def fitted(normals, anomalies, learns, steps=40, batch=(8, 4), seed=0, shares=(0.2, 0.1)):
    source = StandardisedInput("maps", torch.full((CHANNELS,), 0.3), torch.full((CHANNELS,), 1.2))
    training = Training(shares, steps, batch, seed)
    return fit_top_positions(rows_of(normals), rows_of(anomalies), learns, source, training, Context())


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 1000), st.integers(1, 3), st.lists(st.sampled_from([0.01, 0.2, 0.5, 1.0]), min_size=1, max_size=3)
)
def test_score_is_the_mean_over_members_of_their_largest_position_scores(seed, n_heads, shares):
    rng = np.random.default_rng(seed)
    shape = n_heads, len(shares)
    weight, bias, center = rng.normal(size=(*shape, CHANNELS)), rng.normal(size=shape), rng.normal(size=CHANNELS)
    spread = rng.uniform(0.5, 2, CHANNELS)
    tensors = [torch.from_numpy(array).float() for array in (weight, bias, center, spread)]
    rows = rows_of(images(5, seed))
    top_positions = TopPositions(*tensors, shares)
    found, maps = top_positions.inspect(rows, CPU)
    np.testing.assert_array_equal(found, top_positions.score(rows, CPU))
    assert found.shape == (5, n_heads)
    standardised = (rows.maps - center[:, None, None]) / spread[:, None, None]
    positions = np.abs(np.einsum("hec,bcyx->byxhe", weight, standardised) + bias)
    np.testing.assert_allclose(maps, positions.mean(-1), rtol=1e-3, atol=1e-4)
    ordered = np.sort(positions.reshape(5, HEIGHT * WIDTH, *shape), axis=1)
    numbers = [max(1, int(share * HEIGHT * WIDTH)) for share in shares]
    own = [ordered[:, -number:, :, e].mean(1) for e, number in enumerate(numbers)]
    np.testing.assert_allclose(found, np.mean(own, axis=0), rtol=1e-3)


def test_no_rows_have_no_scores():
    scale = torch.zeros(CHANNELS), torch.ones(CHANNELS)
    head = TopPositions(torch.ones(2, 3, CHANNELS), torch.zeros(2, 3), *scale, [0.1, 0.1, 0.2])
    assert head.score(rows_of(images(3)).take(np.arange(0)), CPU).shape == (0, 2)


@given(st.floats(1e-6, 1), st.integers(1, 10_000))
def test_at_least_one_position_and_at_most_all_are_averaged(share, positions):
    assert 1 <= top_number(share, positions) <= positions


def by_autograd(normals, anomalies, learns, steps, batch, seed, shares):
    """The members of all heads trained by the loss as it is written, with batches drawn alike."""
    n_members = len(shares)
    half = [torch.from_numpy((maps.astype(np.float16).astype(np.float32) - 0.3) / 1.2) for maps in (normals, anomalies)]
    data = [maps.half().float().flatten(2).transpose(1, 2) for maps in half]
    generator = torch.Generator().manual_seed(seed)
    first = (2 * torch.rand(n_members, CHANNELS, generator=generator) - 1) / CHANNELS**0.5
    weight = first.repeat(len(learns[0]), 1, 1).requires_grad_()
    bias = torch.zeros(len(learns[0]), n_members, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, max(1, steps // DECAYS), DECAY)
    losses = []
    for _ in range(steps):
        drawn = [torch.randint(each.shape[1], (n,), generator=generator) for each, n in zip(learns, batch, strict=True)]
        total = torch.zeros(len(weight), n_members)
        for maps, own, index, wanted in zip(data, learns, drawn, ("low", "high"), strict=True):
            position = (torch.einsum("bxc,hec->bxhe", maps[index], weight) + bias).abs()
            numbers = [top_number(share, HEIGHT * WIDTH) for share in shares]
            tops = [position[..., e].topk(number, dim=1).values.mean(1) for e, number in enumerate(numbers)]
            score = torch.stack(tops, dim=-1)
            deviation = score if wanted == "low" else (MARGIN - score).clamp_min(0)
            learned = torch.from_numpy(own)[:, index].T.float()[..., None]
            total = total + len(index) * (deviation * learned).sum(0) / learned.sum(0).clamp_min(1)
        loss = total / sum(batch)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
        schedule.step()
        losses.append(float(loss[-1].detach().mean()))
    return weight.detach(), bias.detach(), losses


@pytest.mark.parametrize("steps", [1, 12])
@pytest.mark.parametrize("shares", [[0.01], [0.3], [0.3, 0.01, 0.1]])
def test_the_gradient_is_that_of_the_loss(steps, shares):
    rng = np.random.default_rng(1)
    learns = rng.random((3, 20)) < 0.7, rng.random((3, 9)) < 0.7
    arguments = images(20), images(9, seed=1, spot=5.0), learns, steps, (8, 4), 3, shares
    heads, history = fitted(*arguments)
    weight, bias, losses = by_autograd(*arguments)
    torch.testing.assert_close(heads.weight, weight, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(heads.bias, bias, rtol=1e-3, atol=1e-5)
    assert np.mean(history[:10]) == pytest.approx(np.mean(losses[:10]), rel=1e-3)


def test_a_head_does_not_depend_on_rows_it_does_not_learn_from():
    normals, anomalies = images(20), images(9, seed=1, spot=5.0)
    learns = everything(2, 20, 9)
    learns[0][0, :6] = learns[1][0, :3] = False
    before, _ = fitted(normals, anomalies, learns)
    normals[:6], anomalies[:3] = 3 * normals[:6] + 1, -anomalies[:3]
    after, _ = fitted(normals, anomalies, learns)
    assert torch.equal(before.weight[0], after.weight[0]) and torch.equal(before.bias[0], after.bias[0])
    assert not torch.equal(before.weight[1], after.weight[1])


def test_heads_fitted_together_are_those_fitted_alone():
    normals, anomalies = images(20), images(9, seed=1, spot=5.0)
    learns = everything(3, 20, 9)
    learns[0][1, ::2] = learns[1][1, ::2] = False
    together, _ = fitted(normals, anomalies, learns, steps=3, seed=1)
    alone, _ = fitted(normals, anomalies, tuple(each[1:2] for each in learns), steps=3, seed=1)
    torch.testing.assert_close(together.weight[1:2], alone.weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(together.weight[0], together.weight[2], rtol=1e-3, atol=1e-4)


def test_members_start_from_different_weights():
    normals, anomalies = images(20), images(9, seed=1, spot=5.0)
    several, _ = fitted(normals, anomalies, everything(2, 20, 9), shares=[0.2] * 3, steps=1)
    assert several.weight.shape == (2, 3, CHANNELS)
    assert torch.equal(several.weight[0], several.weight[1])
    assert not torch.isclose(several.weight[0, 0], several.weight[0, 1]).any()


def test_loss_goes_down_and_new_anomalies_are_found():
    normals, anomalies = images(60), images(12, seed=1, spot=6.0)
    heads, history = fitted(normals, anomalies, everything(1, 60, 12), steps=500, batch=(16, 8), shares=[0.1, 0.1])
    assert len(history) == 10
    assert history[-1] < 0.8 * history[0]
    new = rows_of(np.concatenate([images(50, seed=2), images(50, seed=3, spot=6.0)]))
    assert roc_auc_score(np.repeat([0, 1], 50), heads.score(new, CPU)[:, 0]) > 0.95


@pytest.mark.parametrize("steps", [1, 3, 11])
def test_history_covers_every_step(steps):
    _, history = fitted(images(10), images(4), everything(1, 10, 4), steps=steps)
    assert len(history) == {1: 1, 3: 3, 11: 11}[steps]
    assert np.isfinite(history).all()


@pytest.mark.parametrize(("n", "m"), [(2, 1), (1, 1), (2, 2)])
def test_few_images_are_enough(n, m):
    heads, history = fitted(images(n), images(m, seed=1, spot=5.0), everything(2, n, m))
    assert heads.weight.isfinite().all() and np.isfinite(history).all()


def test_linear_heads_are_logistic_regressions_on_what_they_learn_from():
    rng = np.random.default_rng(0)
    normals, anomalies = rng.normal(size=(40, 6)), rng.normal(size=(8, 6)) + 1
    learns = everything(2, 40, 8)
    learns[0][0, 10:20] = learns[1][0, 5] = False
    weight, bias = fit_linear(normals, anomalies, learns)
    assert weight.shape == (2, 6) and bias.shape == (2,)
    for h, (own, known) in enumerate(zip(*learns, strict=True)):
        x, y = np.concatenate([normals[own], anomalies[known]]), np.repeat([0, 1], [own.sum(), known.sum()])
        expected = LogisticRegression(C=PENALTY, class_weight="balanced", max_iter=500).fit(x, y)
        np.testing.assert_allclose(weight[h], expected.coef_[0])
        np.testing.assert_allclose(bias[h], expected.intercept_[0])
    normals[10:20], anomalies[5] = 9.0, -9.0
    again, _ = fit_linear(normals, anomalies, learns)
    np.testing.assert_array_equal(again[0], weight[0])
    assert (again[1] != weight[1]).any()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 3))
def test_gradient_of_the_deviation_loss_is_that_of_autograd(seed, number, n_heads):
    generator = torch.Generator().manual_seed(seed)
    scores = (6 * torch.randn(n_heads, 5, 6, generator=generator)).requires_grad_()
    share, abnormal = torch.rand(n_heads, 5, generator=generator), torch.arange(5) >= 3
    loss, place, gradient = deviation_loss(scores.detach(), abnormal, share, number)
    deviation = scores.abs().sort(dim=2, descending=True).values[..., :number].mean(2)
    expected = (share * torch.where(abnormal, (MARGIN - deviation).relu(), deviation)).mean(1)
    expected.sum().backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(torch.zeros_like(scores).scatter(2, place, gradient), scores.grad)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 3))
def test_weighted_sums_are_products_with_a_sparse_matrix(seed, number, n_heads):
    generator = torch.Generator().manual_seed(seed)
    x, scores = torch.randn(5, 6, 4, generator=generator), torch.randn(n_heads, 5, 6, generator=generator)
    weight, place = scores.topk(number)
    dense = torch.zeros_like(scores).scatter(2, place, weight)
    torch.testing.assert_close(weighted_sums(x, place, weight), torch.einsum("hbx,bxc->hc", dense, x))
