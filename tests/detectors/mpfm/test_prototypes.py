import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.prototypes import fit_prototypes, printed_prototypes


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 40))
def test_every_mode_gets_prototypes_in_proportion_to_its_normals(make_modes, sizes, n_prototypes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    modes = make_modes(d=3, ranks=(2,) * len(sizes))
    psi = np.random.default_rng(0).normal(size=(len(labels), 3)) + 50 * labels[:, None]
    prototypes = fit_prototypes(psi, modes, labels, n_prototypes, 0)
    owner = np.rint(prototypes.mean.detach().numpy().mean(1) / 50).astype(int)
    wanted = min(n_prototypes, len(labels))
    assert wanted <= len(owner) <= wanted + len(sizes) - 1  # every mode has at least one
    assert set(owner) == set(range(len(sizes)))
    share = np.bincount(owner, weights=prototypes.weight.detach().numpy(), minlength=len(sizes))
    np.testing.assert_allclose(share, np.array(sizes) / len(labels), atol=1e-5)
    torch.testing.assert_close(
        prototypes.log_volume.double(), modes.log_det[torch.from_numpy(owner)], rtol=1e-5, atol=1e-5
    )
    assert float(prototypes.scale) == 1


def test_too_many_prototypes_are_capped_and_said(make_modes, caplog):
    psi = np.random.default_rng(0).normal(size=(25, 3))
    with caplog.at_level(logging.INFO):
        prototypes = fit_prototypes(psi, make_modes(d=3, ranks=(2,)), np.zeros(25, dtype=int), 32, 0)
    assert len(prototypes.mean) == 25
    assert "32 prototypes for 25 normals" in caplog.text


def test_printed_prototypes_have_the_scale_of_their_inertia():
    z = np.random.default_rng(0).normal(size=(60, 4))
    prototypes = printed_prototypes(z, 6, 0)
    distance = torch.cdist(torch.from_numpy(z).float(), prototypes.mean.detach()).square().min(1).values
    assert float(prototypes.scale) ** 2 == pytest.approx(float(distance.sum()) / z.size, rel=1e-3)
    assert prototypes.log_volume.abs().max() == 0


@pytest.mark.parametrize("printed", [False, True])
def test_repeated_normals_leave_finite_prototypes(make_modes, printed):
    psi = np.repeat(np.random.default_rng(0).normal(size=(6, 8)), 5, axis=0)
    modes, labels = make_modes(d=8, ranks=(2,)), np.zeros(30, dtype=int)
    prototypes = printed_prototypes(psi, 10, 0) if printed else fit_prototypes(psi, modes, labels, 10, 0)
    assert len(prototypes.mean) == 6
    assert prototypes.posterior(torch.from_numpy(psi).float(), 50.0).isfinite().all()
    assert prototypes.logit.isfinite().all()
