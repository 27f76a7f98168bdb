"""The velocity network in bf16: images rank as in fp32, likelihoods stay in fp32, and fp32 is what it was."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import silu

from mpfm_kedro.detectors.mpfm.assembly import initial_model, score_rows
from mpfm_kedro.detectors.mpfm.calibration import calibrate
from mpfm_kedro.detectors.mpfm.trainer import train
from mpfm_kedro.detectors.mpfm.velocity import VelocityMixture, time_features


@pytest.fixture
def layer_types():
    """The types that linear layers of velocity networks return."""
    seen = set()

    def watch(network):
        for layer in (network.read, network.time, network.mix, network.mean, network.logit):
            layer.register_forward_hook(lambda _, __, output: seen.add(output.dtype))
        return seen

    return watch


@pytest.fixture
def train_in(make_problem, schedule, options):
    """A problem with its model, trained in a precision until the network matters."""

    def of(precision):
        problem = make_problem()
        model = initial_model(problem.closed_form, problem.prototypes, 8, 0, precision)
        longer = dataclasses.replace(schedule, epochs=6, iterations_per_epoch=20, learning_rate=1e-2)
        history = train(model, problem.training, longer, dataclasses.replace(options, head_penalty=0.01), seed=0)
        return problem, model, history

    return of


def fused(problem, model):
    """Calibrated scores of unseen normals and of unseen anomalies."""
    normals, pseudo = (score_rows(model, rows) for rows in (problem.data.held_back, problem.data.held_back_pseudo))
    calibration = calibrate(*normals, *pseudo, n_modes=model.modes.n_modes)
    return [calibration.fuse(*score_rows(model, rows)) for rows in (problem.unseen_normals, problem.unseen_anomalies)]


def rank_correlation(first, second):
    """The lower one of both kinds of images."""
    return min(spearmanr(one, other).statistic for one, other in zip(first, second, strict=True))


def test_a_model_trained_in_bf16_ranks_images_as_one_in_fp32(train_in):
    (problem, full, history), (_, half, half_history) = train_in("fp32"), train_in("bf16")
    expected, found = fused(problem, full), fused(problem, half)
    assert not np.array_equal(expected, found)
    assert rank_correlation(expected, found) > 0.99
    assert half_history[-1]["total"] == pytest.approx(history[-1]["total"], rel=0.02)
    with torch.no_grad():
        for layer in (half.velocity.mean, half.velocity.logit):
            layer.weight.zero_(), layer.bias.zero_()
    assert rank_correlation(expected, fused(problem, half)) < 0.95  # the network has a part in the ranks


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_only_the_network_computes_in_bf16(problem, wake, layer_types, precision, expected):
    model = initial_model(problem.closed_form, problem.prototypes, 8, 0, precision)
    seen = layer_types(wake(model).velocity)
    z = model.z(torch.from_numpy(problem.data.normals.pooled[:5]))
    velocity = model.velocity(z, torch.full((5, 1), 0.5))
    velocity.log_prob(z, 1.0).sum().backward()
    assert seen == {expected}
    assert {part.dtype for part in (*velocity, velocity.log_prob(z, 1.0), model.nll(model.psi(z)))} == {torch.float32}
    assert {weight.grad.dtype for weight in model.velocity.parameters()} == {torch.float32}
    parts, _ = model.score(torch.from_numpy(problem.data.normals.pooled[:5]), problem.data.normals.map_batch(slice(5)))
    assert {part.dtype for part in parts} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fp32_is_the_plain_network(dtype):
    torch.manual_seed(0)
    network = VelocityMixture(5, 3, 8, None).to(dtype)
    torch.nn.init.normal_(network.mean.weight)
    z, t = torch.randn(4, 5, dtype=dtype), torch.rand(4, 1, dtype=dtype)
    hidden = silu(network.mix(silu(network.read(z) + network.time(time_features(t)))))
    logit, mean = network.residual(z, t)
    assert torch.equal(logit, network.logit(hidden))
    assert torch.equal(mean, network.mean(hidden).view(4, 3, 5))


def test_bf16_is_also_used_on_cuda(layer_types, monkeypatch):
    """Fake tensors on a GPU that need not exist."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with FakeTensorMode(), torch.device("cuda"):
        network = VelocityMixture(5, 3, 8, None, "bf16")
        seen = layer_types(network)
        velocity = network(torch.empty(4, 5), torch.empty(4, 1))
        assert seen == {torch.bfloat16}
        assert {(part.dtype, part.device.type) for part in velocity} == {(torch.float32, "cuda")}
