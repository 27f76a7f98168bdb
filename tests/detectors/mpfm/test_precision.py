"""The velocity network in bf16: images rank as in fp32, likelihoods stay in fp32, and fp32 is what it was."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import silu

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
    """A problem with its flow, trained in a precision until the network matters."""

    def of(precision):
        problem = make_problem(precision=precision)
        longer = dataclasses.replace(schedule, epochs=6, iterations_per_epoch=20, learning_rate=1e-2)
        return problem, train(problem.flow, problem.training, longer, options, seed=0)

    return of


def scores(problem):
    """S_g of unseen normals and of unseen anomalies."""
    z = problem.closed_forms.final.standardiser.z
    return [problem.flow.score(z(rows)) for rows in (problem.unseen_normals, problem.unseen_anomalies)]


def rank_correlation(first, second):
    """The lower one of both kinds of images."""
    return min(spearmanr(one, other).statistic for one, other in zip(first, second, strict=True))


def test_a_flow_trained_in_bf16_ranks_images_as_one_in_fp32(train_in):
    (full, history), (half, half_history) = train_in("fp32"), train_in("bf16")
    expected, found = scores(full), scores(half)
    assert not np.array_equal(expected, found)
    assert rank_correlation(expected, found) > 0.99
    assert half_history[-1]["total"] == pytest.approx(history[-1]["total"], rel=0.02)
    with torch.no_grad():
        for layer in (half.flow.velocity.mean, half.flow.velocity.logit):
            layer.weight.zero_(), layer.bias.zero_()
    assert rank_correlation(expected, scores(half)) < 0.97  # the network has a part in the ranks


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_only_the_network_computes_in_bf16(make_problem, wake, layer_types, precision, expected):
    problem = make_problem(precision=precision)
    flow = wake(problem.flow)
    seen = layer_types(flow.velocity)
    z = torch.from_numpy(problem.training.normals.z[:5])
    velocity = flow.velocity(z, torch.full((5, 1), 0.5))
    velocity.log_prob(z, 1.0).sum().backward()
    assert seen == {expected}
    found = (*velocity, velocity.log_prob(z, 1.0), flow.nll(flow.psi(z)), flow.global_score(flow.nll(flow.psi(z))))
    assert {part.dtype for part in found} == {torch.float32}
    assert {weight.grad.dtype for weight in flow.velocity.parameters()} == {torch.float32}


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
