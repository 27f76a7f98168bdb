import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.reverse import coefficients, compare_with_samples, reverse_step, sample_normals
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity
from small_mpfm import fit, make_data, specify


@pytest.mark.parametrize(("t", "r", "mu", "s"), [(0.7, 0.45, 1.5, 1.8), (1.0, 0.5, -2.0, 0.6), (0.4, 0.1, 3.0, 1.2)])
def test_reverse_step_agrees_with_samples_of_the_forward_chain(t, r, mu, s):
    """x_0 has the spread for which s_u = 1 says how far x_t leaves it open."""
    rng, n = np.random.default_rng(0), 400_000
    ratio = (1 - t) / (1 - r)
    x_0 = -2 + t * s / np.sqrt(s**2 - (1 - t) ** 2) * rng.normal(size=n)
    x_r = (1 - r) * x_0 + r * (mu + s * rng.normal(size=n))
    x_t = t * mu + ratio * (x_r - r * mu) + s * np.sqrt(t**2 - ratio**2 * r**2) * rng.normal(size=n)
    start = np.polynomial.Polynomial.fit(x_t, x_0, 1)(x_t)  # E[x_0 | x_t], which is a line
    velocity = torch.from_numpy((x_t - start) / t).view(1, -1, 1, 1)
    target = PrototypeMixture(mean=torch.tensor(mu).double().view(1, 1, 1), scale=torch.tensor([s]))
    mean, variance = reverse_step(velocity, torch.from_numpy(x_t).view(1, -1, 1), t, r, target)
    left = x_r - mean.flatten().numpy()
    np.testing.assert_allclose([*np.polyfit(x_t, left, 1), left.mean()], 0, atol=0.015)
    assert left.var() == pytest.approx(float(variance), rel=0.01)
    c1, c2, c3 = coefficients(t, r)  # given both ends, whatever x_0 is distributed like
    inputs = np.column_stack([x_t - t * mu, x_0, np.ones(n)])
    if t < 1:
        slopes, residual, *_ = np.linalg.lstsq(inputs, x_r, rcond=None)
        np.testing.assert_allclose(slopes, [c1, c2, r * mu], atol=0.015)
        assert residual.item() / n == pytest.approx(s**2 * c3, rel=0.01)


@pytest.mark.parametrize(("t", "r"), [(0.5, 0.5), (0.4, 0.6), (1.1, 0.5), (0.5, -0.1)])
def test_a_step_in_the_wrong_direction_is_an_error(t, r):
    with pytest.raises(ValueError, match="reverse step"):
        coefficients(t, r)


@pytest.mark.parametrize("steps", [1, 4])
def test_sampled_normals_have_the_places_and_spreads_of_the_groups(steps):
    center, gain = torch.tensor([[[9.0, 0.0], [-9.0, 5.0]]]), torch.tensor([[0.5, 2.0]])
    flow = Flow(
        CoupledVelocity(center=center, gain=gain),
        PrototypeMixture(mean=center, logit=torch.tensor([[0.3, 0.7]]).log(), scale=torch.ones(1)),
    )
    with torch.no_grad():
        (sample,) = sample_normals(flow, 20_000, steps, torch.Generator().manual_seed(0))
    for k, share in enumerate((0.3, 0.7)):
        own = sample[(sample[:, 0] < 0) == bool(k)]
        assert len(own) / 20_000 == pytest.approx(share, abs=0.02)
        torch.testing.assert_close(own.mean(0), center[0, k], rtol=0, atol=0.1)
        torch.testing.assert_close(own.std(0), (1 / gain[0, k]).expand(2), rtol=0.05, atol=0)


def test_the_printed_chain_ends_where_its_velocity_aims():
    targets, n_steps = torch.tensor([[3.0, 0.0], [-3.0, 1.0]]), 20

    class Aimed(torch.nn.Module):
        def components(self, x_t, t):
            log_weight = torch.tensor([0.25, 0.75]).log().expand(*x_t.shape[:2], -1)
            return log_weight, (x_t[:, :, None] - targets) / t[..., None]

    prototypes = PrototypeMixture(
        mean=torch.tensor([[[1.0, 5.0], [2.0, -4.0]]]), logit=torch.zeros(1, 2), scale=torch.ones(1)
    )
    (sample,) = sample_normals(Flow(Aimed(), prototypes), 4000, n_steps, torch.Generator().manual_seed(0))
    distance = torch.cdist(sample, targets)
    assert distance.min(1).values.square().mean() == pytest.approx(2 / n_steps**2, rel=0.1)  # s_x = t, two axes
    assert float((distance.argmin(1) == 0).float().mean()) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("trained", [False, True])
def test_drawn_features_lie_where_the_real_ones_do(trained):
    data, *_ = make_data(n=300)
    pieces = fit(specify(trained=trained), data)
    table, other = (compare_with_samples(pieces, data.normals.pooled, seed) for seed in (0, 1))
    assert table["kind"].value_counts().to_dict() == {"real": 300, "sampled": 300}
    moments = table.groupby("kind")[["first", "second"]].agg(["mean", "std"])
    np.testing.assert_allclose(moments.loc["sampled"], moments.loc["real"], atol=0.3)
    assert (table["first"] != other["first"]).any()
