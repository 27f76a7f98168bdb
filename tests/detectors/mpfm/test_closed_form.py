import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.mpfm.closed_form import CrossFit, initialise
from mpfm_kedro.detectors.mpfm.rounds import assign_folds
from small_mpfm import CPU, groups, make_data, make_rows


def start(rows, fold=None, n_prototypes=4, max_modes=2, whitened=True):
    """What is stored of the initialisation, and what it makes of the normals in all rounds."""
    fold = assign_folds(np.arange(len(rows)), 3, 0) if fold is None else fold
    parameters = groups(n_prototypes=n_prototypes, max_modes=max_modes)["prototypes"]
    stored = initialise(rows, fold, parameters, 0, Context(CPU), whitened)
    none = rows.take(np.arange(0))
    return stored, CrossFit.restore({"prototypes": stored}, TrainingData(rows, none, none), 0, 0, CPU)


def enter(model, rows):
    return model.enter(model.standardiser.z_of(rows))


@pytest.mark.parametrize("whitened", [True, False])
def test_held_out_normals_are_what_the_closed_form_without_them_says(whitened):
    data, *_ = make_data()
    _, cross_fit = start(data.normals, whitened=whitened)
    held_out = cross_fit.held_out
    for model, normals, x, p in cross_fit.held_out_normals():
        rows = data.normals.take(normals)
        expected_x, expected_p, mode = enter(model, rows)
        torch.testing.assert_close(x, expected_x, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(p, expected_p, rtol=1e-4, atol=1e-5)
        assert torch.equal(held_out.group[normals], p.argmax(1)) and torch.equal(held_out.mode[normals], mode)
        squares = model.mean_squares(rows, mode)
        torch.testing.assert_close(held_out.squares[normals], squares, rtol=1e-2, atol=1e-3)


def test_a_closed_form_without_a_fold_is_that_of_the_other_normals():
    data, *_ = make_data()
    stored, cross_fit = start(data.normals, n_prototypes=1, max_modes=1)
    model, alpha = cross_fit.models[1], stored.details["shrinkage"]
    learned = cross_fit.z[torch.from_numpy(cross_fit.held_out.fold != 1)]
    torch.testing.assert_close(model.enter(learned)[0].mean(0), model.center[0])
    shrunk = (1 - alpha) * learned.T.cov(correction=0) + alpha * learned.var(0, correction=0).mean() * torch.eye(6)
    root = model.whitening(torch.eye(6))
    torch.testing.assert_close(root @ shrunk @ root.T, torch.eye(6), rtol=0, atol=1e-3)


def test_new_normals_of_every_group_end_with_about_unit_spread():
    rng = np.random.default_rng(0)
    label, spread = np.arange(1200) % 2, np.array([0.5, 2.0])
    rows, new = (make_rows(20 * label[:, None] + spread[label][:, None] * rng.normal(size=(1200, 6))) for _ in range(2))
    model = start(rows, n_prototypes=2)[1].models[-1]
    x, p, _ = enter(model, new)
    psi = model.flow.psi(x[None], p[None])[0]
    for k in range(2):
        own = psi[p.argmax(1) == k]
        assert float((own - own.mean(0)).square().mean()) == pytest.approx(1, abs=0.3)  # drawn to that of all


def test_the_printed_start_is_raw_with_the_scale_of_its_groups():
    data, *_ = make_data()
    fit, cross_fit = start(data.normals, whitened=False)
    model = cross_fit.models[-1]
    x, p, _ = enter(model, data.normals)
    assert torch.equal(x, torch.from_numpy(data.normals.pooled))
    assert torch.equal(model.flow.psi(x[None], p[None])[0], x)
    inertia = (x - model.center[fit.tensors["group"]]).square().mean()
    assert float(model.flow.prototypes.scale) == pytest.approx(float(inertia) ** 0.5, rel=1e-4)


def test_only_the_printed_start_has_more_groups_than_an_eighth_of_the_normals():
    normals = make_rows(np.random.default_rng(0).normal(size=(40, 6)))
    fits = [start(normals, n_prototypes=12, whitened=whitened)[1] for whitened in (True, False)]
    assert [len(fit.models[-1].center) for fit in fits] == [5, 12]


def test_a_group_that_lies_in_one_fold_is_handled():
    pooled = np.random.default_rng(0).normal(size=(60, 6))
    pooled[:12] += 30
    fold = np.where(np.arange(60) < 12, 0, 1 + np.arange(60) % 2)
    _, (_, _, models, held_out, _) = start(make_rows(pooled), fold, n_prototypes=2)
    assert (models[0].groups.share < 1e-6).sum() == 1 and held_out.offset.isfinite().all()
    for model in models:
        assert model.step_0(*enter(model, make_rows(pooled))[:2]).isfinite().all()


@pytest.mark.parametrize("distinct", [1, 4])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_repeated_images_leave_a_finite_closed_form(distinct):
    pooled = np.repeat(np.random.default_rng(0).normal(size=(distinct, 6)), 20 // distinct, axis=0)
    _, cross_fit = start(make_rows(pooled))
    model = cross_fit.models[-1]
    x, p, _ = model.enter(torch.randn(5, 6))
    assert model.step_0(x, p).isfinite().all() and cross_fit.held_out.squares.isfinite().all()
