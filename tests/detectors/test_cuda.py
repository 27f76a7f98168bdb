"""Every detector on a real CUDA device, where there is one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.detectors.registry import baselines
from small_mpfm import CPU, PRINTED, fit, make_data, make_rows, specify


def mpfm(data, device, memory, **changes):
    return load(fit(specify(**changes), data, device=device, memory=memory), device)


def fitted_baseline(cls, data, device, memory):
    return cls(steps=3).fit(data, 0, Context(device, memory))


DETECTORS = {
    "MPFM": mpfm,
    "MPFM as printed": partial(mpfm, **PRINTED),
    "MPFM, no anomaly known": partial(mpfm, trained=False),
    **{cls.name: partial(fitted_baseline, cls) for cls in baselines()},
}
EVERY = pytest.mark.parametrize("name", DETECTORS)


def scores_on(device, name, memory=1 << 30):
    data, _, anomalies = make_data()
    data = replace(data, pseudo=make_rows(data.normals.pooled + 0.5, spot=2.0, seed=9))
    return DETECTORS[name](data, device=device, memory=memory).score_samples(anomalies).score


@EVERY
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["cached", "read"])
def test_scores_on_cuda_are_those_on_the_cpu(name, memory):
    expected = scores_on(CPU, name)
    found = scores_on(torch.device("cuda"), name, memory)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).mean())


@EVERY
def test_the_random_state_of_the_device_is_left_alone(name, monkeypatch):
    """Seeding by ``torch.manual_seed`` reseeds every GPU too, and nothing sets them back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    scores_on(CPU, name)
    assert seeded == []
