"""Every baseline on a pretended GPU: a tensor left on the CPU raises; the numbers are those of the CPU."""

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.baselines.ahl import AHL
from mpfm_kedro.detectors.baselines.gradient_training import NetworkDetector
from mpfm_kedro.detectors.baselines.patch_knn import PatchNeighbours
from mpfm_kedro.detectors.registry import baselines
from pretended_cuda import CUDA, PretendedCuda

EVERY = pytest.mark.parametrize("cls", baselines(), ids=lambda cls: cls.name)


def on_the_gpu(cls, data, rows, memory):
    """Scores of what was fitted and of what was restored, each with the operations on the device."""
    with PretendedCuda() as fitting:
        fitted = cls(steps=1).fit(data, 0, Context(CUDA, memory))
        scores, state = fitted.score_samples(rows).score, fitted.state()
        assert all(value.device.type == "cpu" for value in state.tensors.values())
    with PretendedCuda() as restoring:
        restored = cls.restore(state, CUDA).score_samples(rows).score
    return [(scores, fitting.operations), (restored, restoring.operations)]


@EVERY
@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["cached", "read"])
def test_a_step_and_scoring_stay_on_the_device(cls, memory, make_data, make_rows):
    data, rows = make_data(normals=20, pseudo=20), make_rows(20, 10, 0)
    expected = cls(steps=1).fit(data, 0, Context(memory=memory)).score_samples(rows).score
    for scores, operations in on_the_gpu(cls, data, rows, memory):
        np.testing.assert_array_equal(scores, expected)
        assert bool(operations) == issubclass(cls, (NetworkDetector, PatchNeighbours))


@pytest.mark.parametrize("cls", [cls for cls in baselines() if issubclass(cls, NetworkDetector)], ids=lambda c: c.name)
def test_a_network_left_on_the_cpu_raises(cls, make_data, make_rows, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, device: module)
    with pytest.raises(RuntimeError, match="same device"):
        on_the_gpu(cls, make_data(normals=20, pseudo=20), make_rows(20, 10, 0), 1 << 30)


def test_the_importance_of_subsets_is_learned_beside_the_device(make_data, make_rows, monkeypatch):
    """It learns from what is known of five epochs, one step each here."""
    monkeypatch.setattr("mpfm_kedro.detectors.baselines.ahl.STEPS_PER_EPOCH", 1)
    data, rows = make_data(normals=20, pseudo=20), make_rows(20, 10, 0)
    with PretendedCuda():
        scores = AHL(steps=6).fit(data, 0, Context(CUDA)).score_samples(rows).score
    np.testing.assert_array_equal(scores, AHL(steps=6).fit(data, 0, Context()).score_samples(rows).score)
