from dataclasses import replace

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.detectors.mpfm.detector import keep_final, load, load_fold_models
from small_mpfm import CPU, PRINTED, fit, make_data, specify, through_bytes


def double(n_known):
    """Training data and new images in two backbones, the second with finer maps."""
    first, second = make_data(n_known=n_known), make_data(n_known=n_known, d=7, seed=50)

    def both(one, other):
        return replace(one, others=(replace(other, maps=other.maps.repeat(2, 2).repeat(2, 3)),))

    kinds = ("normals", "pseudo", "anomalies")
    data = TrainingData(*(both(getattr(first[0], kind), getattr(second[0], kind)) for kind in kinds))
    return data, *(both(one, other) for one, other in zip(first[1:], second[1:], strict=True))


@pytest.mark.parametrize("n_known", [0, 1, 4])
@pytest.mark.parametrize("n_backbones", [1, 2])
@pytest.mark.parametrize("forms", [{}, PRINTED], ids=["repaired", "printed"])
def test_what_is_stored_or_kept_scores_the_same(n_known, n_backbones, forms):
    data, normals, _ = double(n_known) if n_backbones == 2 else make_data(n_known=n_known)
    pieces = fit(specify(trained=n_known > 0, n_backbones=n_backbones, **forms), data)
    expected, kept = load(pieces, CPU).inspect(normals), keep_final(pieces)
    for other in ({name: through_bytes(piece) for name, piece in pieces.items()}, kept):
        for name, value in load(other, CPU).inspect(normals)._asdict().items():
            assert torch.equal(value, getattr(expected, name)), name
    for name, piece in kept.items():
        size, before = (sum(value.numel() for value in own[name].tensors.values()) for own in (kept, pieces))
        assert size < before
        assert not any(key in ("fold", "group") or key.startswith("held_out") for key in piece.tensors)


@pytest.mark.parametrize("n_known", [0, 1, 3])
def test_backbones_side_by_side_add_their_scores_and_maps(n_known):
    data, normals, anomalies = double(n_known)
    pieces = fit(specify(trained=n_known > 0, n_backbones=2), data)
    detector = load(pieces, CPU)
    found = detector.inspect(anomalies)
    parts = [
        branch(torch.from_numpy(rows.pooled), rows.map_batch())
        for branch, rows in zip(detector.branches, (anomalies, anomalies.others[0]), strict=True)
    ]
    torch.testing.assert_close(found.score, parts[0].score + parts[1].score, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.contributions.sum(1), found.score, rtol=1e-4, atol=1e-4)
    assert found.positions.shape == (40, 4, 4) and (found.positions >= parts[0].positions - 1e-3).all()
    assert found.score.median() > detector.inspect(normals).score.quantile(0.9)
    for each in load_fold_models(pieces, data, 0, CPU):
        assert np.isfinite(each.detector.score_samples(data.normals.take(each.normals)).score).all()
    alone = fit(specify(trained=False), data)["prototypes"]
    assert all(torch.equal(value, pieces["prototypes"].tensors[name]) for name, value in alone.tensors.items())


@pytest.mark.parametrize("n_known", [0, 1, 3])
def test_what_fold_models_say_of_their_normals_is_what_the_final_one_says_of_new_ones(n_known):
    data, normals, _ = make_data(n=200, n_known=n_known)
    pieces = fit(specify(trained=n_known > 0, n_patch_prototypes=200), data)
    left_out = load_fold_models(pieces, data, 0, CPU)
    held_out = np.concatenate([e.detector.score_samples(data.normals.take(e.normals)).score for e in left_out])
    new, seen = (np.median(load(pieces, CPU).score_samples(rows).score) for rows in (normals, data.normals))
    assert abs(np.median(held_out) - new) < 0.5 * new and seen < np.median(held_out)


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


def test_the_printed_residual_reads_no_patch(small):
    _, data, normals, _ = small
    detector = load(fit(specify(residual="printed", scores=["r"]), data), CPU)
    before = detector.inspect(normals)
    detector.first.patches.mean += 1
    after = detector.inspect(normals)
    assert torch.equal(before.score, after.score) and torch.equal(before.positions, after.positions)
    assert not before.positions.flatten(1).diff().any() and before.score.unique().numel() > 1


def test_the_printed_sum_is_that_of_the_parts(small):
    _, data, _, anomalies = small
    scores = load(fit(specify(**PRINTED), data), CPU).score_samples(anomalies)
    g, a, r, n = scores.parts.T
    np.testing.assert_allclose(scores.score, g + a + r - n, rtol=1e-4, atol=1e-3)
