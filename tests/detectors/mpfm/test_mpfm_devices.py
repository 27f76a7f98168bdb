"""MPFM on a pretended GPU: a tensor left on the CPU raises; the numbers are those of the CPU."""

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.mpfm.detector import load, load_fold_models
from mpfm_kedro.detectors.mpfm.reverse import sample_normals
from mpfm_kedro.detectors.mpfm.storage import unpack_modules
from pretended_cuda import CUDA, PretendedCuda
from small_mpfm import CPU, PRINTED, Memory, fit, make_data, specify

FORMS = pytest.mark.parametrize("forms", [{}, PRINTED | {"transport_steps": 2}], ids=["repaired", "printed"])


@FORMS
def test_every_piece_is_fitted_and_resumed_on_the_device(forms):
    data, *_ = make_data()
    expected, checkpoint = fit(specify(**forms), data), Memory()
    with PretendedCuda() as pretended:
        whole = fit(specify(**forms), data, checkpoint=checkpoint, device=CUDA)
        resumed = fit(specify(**forms), data, checkpoint=Memory(checkpoint.states[:1]), device=CUDA)
    for pieces in (whole, resumed):
        for name, piece in pieces.items():
            assert piece.details == expected[name].details
            assert all(torch.equal(value, expected[name].tensors[key]) for key, value in piece.tensors.items()), name
    assert {"_fused_adamw_", "topk", "logsumexp", "argmax"} <= pretended.operations


@FORMS
@pytest.mark.parametrize("n_known", [0, 3])
def test_scoring_and_sampling_stay_on_the_device(forms, n_known):
    data, _, anomalies = make_data(n_known=n_known)
    pieces, found = fit(specify(trained=n_known > 0, **forms), data), []
    for device in (CPU, CUDA):
        with PretendedCuda(), torch.inference_mode():
            scores = load(pieces, device).score_samples(anomalies)
            first, *_ = load_fold_models(pieces, data.anomalies.source, 0, device)
            held_out = first.detector.score_samples(data.normals.take(first.normals))
            found.append([scores.score, scores.parts, scores.mode, held_out.score])
            if n_known:
                flow = unpack_modules(pieces["training"]).flow.to(device)
                sample = sample_normals(flow, 5, 2, torch.Generator().manual_seed(0))
                assert sample.device.type == device.type
                found[-1].append(sample.cpu().numpy())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_random_state_of_the_device_is_left_alone(monkeypatch):
    """Seeding by ``torch.manual_seed`` reseeds every GPU too, and nothing sets them back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    fit(specify(), make_data()[0])
    assert seeded == []
