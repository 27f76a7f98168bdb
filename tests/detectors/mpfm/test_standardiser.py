import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.mpfm.whitening import Standardiser
from small_mpfm import make_rows


@pytest.mark.parametrize("n", [2, 9, 50])
def test_training_normals_have_mean_zero_and_spread_one(n):
    rows = make_rows(1e3 + np.random.default_rng(0).normal(size=(n, 5)) * [0.01, 1, 100, 1, 1])
    standardiser = Standardiser.fit(rows)
    z, patches = standardiser.z_of(rows), standardiser.patches(rows.map_batch()).flatten(0, 1)
    for values in (z, patches):
        torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), rtol=0, atol=0.02)
        torch.testing.assert_close(values.std(0, correction=0), torch.ones(values.shape[1]), rtol=0, atol=0.02)
