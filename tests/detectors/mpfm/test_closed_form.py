import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.mpfm.closed_form import Initialised, initialise
from mpfm_kedro.detectors.mpfm.rounds import assign_folds
from small_mpfm import CPU, groups, make_data, make_rows


def start(rows, fold=None, n_prototypes=4, max_modes=2, whitened=True):
    """The initialisation as it is restored, its artefact, and an image as it enters the final flow."""
    fold = assign_folds(np.arange(len(rows)), 3, 0) if fold is None else fold
    parameters = groups(n_prototypes=n_prototypes, max_modes=max_modes)["prototypes"]
    artefact = initialise(rows, fold, parameters, 0, Context(CPU), whitened)
    return Initialised.restore(artefact, CPU), artefact


def enter(closed_form, rows):
    return closed_form.enter(closed_form.standardiser.z_of(rows))


@pytest.mark.parametrize("whitened", [True, False])
def test_held_out_normals_are_what_the_closed_form_without_them_says(whitened):
    data, *_ = make_data()
    found, _ = start(data.normals, whitened=whitened)
    for number, normals in found.held_out():
        closed_form, rows = found.closed_forms[number], data.normals.take(normals)
        entered = enter(closed_form, rows)
        torch.testing.assert_close(found.x(number, normals), entered.x, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.p[normals], entered.p, rtol=1e-4, atol=1e-5)
        assert torch.equal(found.group[normals], entered.p.argmax(1)) and torch.equal(found.mode[normals], entered.mode)
        squares = closed_form.mean_squares(rows, entered.mode, 0.2)
        torch.testing.assert_close(found.squares[normals], squares, rtol=1e-2, atol=1e-3)


def test_a_closed_form_without_a_fold_is_that_of_the_other_normals():
    data, *_ = make_data()
    found, artefact = start(data.normals, n_prototypes=1, max_modes=1)
    closed_form, alpha = found.closed_forms[1], artefact.details["shrinkage"]
    learned = closed_form.standardiser.z_of(data.normals)[torch.from_numpy(found.fold != 1)]
    torch.testing.assert_close(closed_form.enter(learned).x.mean(0), closed_form.center[0])
    shrunk = (1 - alpha) * learned.T.cov(correction=0) + alpha * learned.var(0, correction=0).mean() * torch.eye(6)
    root = closed_form.whitening(torch.eye(6))
    torch.testing.assert_close(root @ shrunk @ root.T, torch.eye(6), rtol=0, atol=1e-3)


def test_new_normals_of_every_group_end_with_about_unit_spread():
    rng = np.random.default_rng(0)
    label, spread = np.arange(1200) % 2, np.array([0.5, 2.0])
    rows, new = (make_rows(20 * label[:, None] + spread[label][:, None] * rng.normal(size=(1200, 6))) for _ in range(2))
    closed_form = start(rows, n_prototypes=2)[0].closed_forms[-1]
    x, p, _ = enter(closed_form, new)
    psi = closed_form.flow.psi(x[None], p[None])[0]
    for k in range(2):
        own = psi[p.argmax(1) == k]
        assert float((own - own.mean(0)).square().mean()) == pytest.approx(1, abs=0.3)  # drawn to that of all


def test_the_printed_start_is_raw_with_the_scale_of_its_groups():
    data, *_ = make_data()
    found, _ = start(data.normals, whitened=False)
    closed_form = found.closed_forms[-1]
    x, p, _ = enter(closed_form, data.normals)
    assert torch.equal(x, closed_form.standardiser.z_of(data.normals))
    assert torch.equal(closed_form.flow.psi(x[None], p[None])[0], x)
    inertia = found.offset.square().mean()
    assert float(closed_form.flow.prototypes.scale) == pytest.approx(float(inertia) ** 0.5, rel=1e-4)


def test_a_group_that_lies_in_one_fold_is_handled():
    pooled = np.random.default_rng(0).normal(size=(60, 6))
    pooled[:12] += 30
    fold = np.where(np.arange(60) < 12, 0, 1 + np.arange(60) % 2)
    found, _ = start(make_rows(pooled), fold, n_prototypes=2)
    assert (found.closed_forms[0].groups.share < 1e-6).sum() == 1 and found.offset.isfinite().all()
    for closed_form in found.closed_forms:
        assert closed_form.score_of(*enter(closed_form, make_rows(pooled))[:2]).isfinite().all()


@pytest.mark.parametrize("distinct", [1, 4])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_repeated_images_leave_a_finite_closed_form(distinct):
    pooled = np.repeat(np.random.default_rng(0).normal(size=(distinct, 6)), 20 // distinct, axis=0)
    found, _ = start(make_rows(pooled))
    x, p, _ = found.closed_forms[-1].enter(torch.randn(5, 6))
    assert found.closed_forms[-1].score_of(x, p).isfinite().all() and found.squares.isfinite().all()
