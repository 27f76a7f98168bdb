import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, HeldOut, initialise
from mpfm_kedro.detectors.mpfm.rounds import assign_folds
from small_mpfm import CPU, groups, make_data, make_rows


def start(rows, fold=None, n_prototypes=4, max_modes=2, whitened=True):
    """What is stored of the initialisation, all closed forms, and what they make of held-out normals."""
    fold = assign_folds(np.arange(len(rows)), 3, 0) if fold is None else fold
    parameters = groups(n_prototypes=n_prototypes, max_modes=max_modes)["prototypes"]
    stored = initialise(rows, fold, parameters, 0, Context(CPU), whitened)
    return stored, [ClosedForm.restore(stored, r) for r in range(fold.max() + 2)], HeldOut.restore(stored)


def enter(closed_form, rows):
    return closed_form.enter(closed_form.standardiser.z_of(rows))


@pytest.mark.parametrize("whitened", [True, False])
def test_held_out_normals_are_what_the_closed_form_without_them_says(whitened):
    data, *_ = make_data()
    _, closed_forms, held_out = start(data.normals, whitened=whitened)
    for number, normals, x, p in held_out.enter(closed_forms):
        closed_form, rows = closed_forms[number], data.normals.take(normals)
        expected = enter(closed_form, rows)
        torch.testing.assert_close(x, expected.x, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(p, expected.p, rtol=1e-4, atol=1e-5)
        assert torch.equal(held_out.group[normals], p.argmax(1)) and torch.equal(held_out.mode[normals], expected.mode)
        squares = closed_form.mean_squares(rows, expected.mode)
        torch.testing.assert_close(held_out.squares[normals], squares, rtol=1e-2, atol=1e-3)


def test_a_closed_form_without_a_fold_is_that_of_the_other_normals():
    data, *_ = make_data()
    stored, closed_forms, held_out = start(data.normals, n_prototypes=1, max_modes=1)
    closed_form, alpha = closed_forms[1], stored.details["shrinkage"]
    learned = closed_form.standardiser.z_of(data.normals)[torch.from_numpy(held_out.fold != 1)]
    torch.testing.assert_close(closed_form.enter(learned).x.mean(0), closed_form.center[0])
    shrunk = (1 - alpha) * learned.T.cov(correction=0) + alpha * learned.var(0, correction=0).mean() * torch.eye(6)
    root = closed_form.whitening(torch.eye(6))
    torch.testing.assert_close(root @ shrunk @ root.T, torch.eye(6), rtol=0, atol=1e-3)


def test_new_normals_of_every_group_end_with_about_unit_spread():
    rng = np.random.default_rng(0)
    label, spread = np.arange(1200) % 2, np.array([0.5, 2.0])
    rows, new = (make_rows(20 * label[:, None] + spread[label][:, None] * rng.normal(size=(1200, 6))) for _ in range(2))
    closed_form = start(rows, n_prototypes=2)[1][-1]
    x, p, _ = enter(closed_form, new)
    psi = closed_form.flow.psi(x[None], p[None])[0]
    for k in range(2):
        own = psi[p.argmax(1) == k]
        assert float((own - own.mean(0)).square().mean()) == pytest.approx(1, abs=0.3)  # drawn to that of all


def test_the_printed_start_is_raw_with_the_scale_of_its_groups():
    data, *_ = make_data()
    _, (*_, closed_form), held_out = start(data.normals, whitened=False)
    x, p, _ = enter(closed_form, data.normals)
    assert torch.equal(x, closed_form.standardiser.z_of(data.normals))
    assert torch.equal(closed_form.flow.psi(x[None], p[None])[0], x)
    inertia = held_out.offset.square().mean()
    assert float(closed_form.flow.prototypes.scale) == pytest.approx(float(inertia) ** 0.5, rel=1e-4)


def test_a_group_that_lies_in_one_fold_is_handled():
    pooled = np.random.default_rng(0).normal(size=(60, 6))
    pooled[:12] += 30
    fold = np.where(np.arange(60) < 12, 0, 1 + np.arange(60) % 2)
    _, closed_forms, held_out = start(make_rows(pooled), fold, n_prototypes=2)
    assert (closed_forms[0].groups.share < 1e-6).sum() == 1 and held_out.offset.isfinite().all()
    for closed_form in closed_forms:
        assert closed_form.score_of(*enter(closed_form, make_rows(pooled))[:2]).isfinite().all()


@pytest.mark.parametrize("distinct", [1, 4])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_repeated_images_leave_a_finite_closed_form(distinct):
    pooled = np.repeat(np.random.default_rng(0).normal(size=(distinct, 6)), 20 // distinct, axis=0)
    _, (*_, closed_form), held_out = start(make_rows(pooled))
    x, p, _ = closed_form.enter(torch.randn(5, 6))
    assert closed_form.score_of(x, p).isfinite().all() and held_out.squares.isfinite().all()
