import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.mpfm.detector import load
from small_mpfm import CPU, PRINTED, fit, make_data, specify


@pytest.fixture(scope="module")
def small():
    data, normals, anomalies = make_data(n_known=5)
    return load(fit(specify(), data), CPU), data, normals, anomalies


def test_the_score_is_the_sum_of_what_the_parts_add(small):
    detector, _, normals, _ = small
    found = detector.inspect(normals)
    torch.testing.assert_close(found.score, found.contributions.sum(1))
    assert (found.contributions >= 0).all() and found.positions.shape == (40, 4, 4)
    assert (found.parts[:, :3] >= 0).all() and (found.parts[:, 3] <= 0).all()
    alone = detector.inspect(normals.take(np.array([7])))
    torch.testing.assert_close(alone.positions[0], found.positions[7], rtol=1e-3, atol=1e-3)


def test_positions_of_a_defect_have_the_highest_scores(small):
    detector, _, normals, anomalies = small
    more = (detector.position_scores(anomalies) - detector.position_scores(normals)).mean(0)
    row, column = np.unravel_index(more.argmax(), more.shape)
    assert abs(row - 1) <= 1 and abs(column - 2) <= 1  # patches are averaged with their neighbours
    assert more[1, 2] > more[3, 0] + 1


def test_the_printed_sum_is_that_of_the_parts(small):
    _, data, _, anomalies = small
    scores = load(fit(specify(**PRINTED), data), CPU).score_samples(anomalies)
    g, a, r, n = scores.parts.T
    np.testing.assert_allclose(scores.score, g + a + r - n, rtol=1e-4, atol=1e-3)
