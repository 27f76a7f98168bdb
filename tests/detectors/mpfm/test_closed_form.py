import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from mpfm_kedro.detectors.mpfm.assembly import initial_model
from mpfm_kedro.detectors.mpfm.closed_form import (
    closed_form_start,
    fit_closed_form,
    fit_standardiser,
    start_by_fold,
    unpack,
)
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.mode_fitting import FittedModes, folds, modes_without_fold
from mpfm_kedro.detectors.mpfm.mutual_information import information, mim_loss
from mpfm_kedro.detectors.mpfm.prototypes import fit_prototypes, initialise

D = 2304


def build(closed_form, prototypes, mixture=None):
    model = initial_model(closed_form, prototypes, hidden=8, seed=0)
    if mixture is not None:
        model.prototypes = mixture
    return model


def scores(model, rows):
    parts, _ = model.score(torch.from_numpy(rows.pooled), rows.map_batch())
    return parts.g.numpy()


def energy_of_the_modes(model, rows):
    with torch.inference_mode():
        z = model.z(torch.from_numpy(rows.pooled)).double()
        return -model.modes.double().log_prob(z).logsumexp(1).numpy()


@pytest.fixture(scope="module")
def wide(make_rows):
    """Two modes of far fewer normals than dimensions."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(2, 25, D)) * np.geomspace(1.0, 0.1, 25)[:, None]
    mean = 3 * rng.normal(size=(2, D))

    def draw(size, seed, level=0.3):
        mode = np.arange(size) % 2
        factor = rng.normal(size=(size, 25))
        noise = level * rng.normal(size=(size, D))
        return make_rows(mean[mode] + np.einsum("nf,nfd->nd", factor, loadings[mode]) + noise, seed=seed)

    normals, held_back = draw(120, 1), draw(40, 2)
    new = draw(80, 3), draw(40, 4, level=0.33), draw(40, 5, level=0.5)
    closed_form, _ = fit_closed_form(normals, normals.take(np.arange(0)), held_back, 4, 50, top_share=0.1, seed=0)
    return closed_form, initialise(closed_form, normals, 32, transport_steps=1, seed=0), normals, new


def test_standardiser_centres_and_scales_normals(make_rows):
    rng = np.random.default_rng(0)
    rows = make_rows(5 + 3 * rng.normal(size=(600, 6)))
    standardiser = fit_standardiser(rows)
    z = standardiser.z(rows)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(z.std(0), 1, atol=1e-4)
    maps = rows.map_batch().double().numpy()
    np.testing.assert_allclose(standardiser.map_center, maps.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(standardiser.map_spread, maps.std((0, 2, 3)), atol=1e-5)


def test_constant_features_keep_their_scale(make_rows):
    pooled = np.column_stack([np.full(10, 4.0), np.arange(10.0)])
    assert fit_standardiser(make_rows(pooled)).pooled_spread[0] == 1


def test_constant_channels_keep_their_scale(make_rows):
    rows = make_rows(np.random.default_rng(0).normal(size=(300, 3)))
    rows.maps[:, 2] = 12.3
    assert fit_standardiser(rows).map_spread[2] == 1


def test_untrained_global_score_is_the_energy_of_the_one_mode(make_problem):
    problem = make_problem(n_modes=1)
    modes = problem.closed_form.modes
    assert modes.n_modes == 1
    model = build(*problem[1:3], PrototypeMixture(modes.target_mean, torch.ones(1), 1.0, modes.log_det))
    rows = problem.unseen_anomalies
    energy = energy_of_the_modes(model, rows) / rows.pooled.shape[1]
    model.modes.float()
    center, spread = (problem.prototypes.details[f"global_{name}"] for name in ("center", "spread"))
    np.testing.assert_allclose(scores(model, rows), (energy - center) / spread, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_modes", [2, 3])
def test_untrained_global_score_ranks_as_the_mixture_of_modes(make_problem, n_modes):
    problem = make_problem(n_modes=n_modes)
    modes = problem.closed_form.modes
    assert modes.n_modes == n_modes
    model = build(*problem[1:3], PrototypeMixture(modes.target_mean, modes.weight, 1.0, modes.log_det))
    for rows in (problem.unseen_normals, problem.unseen_anomalies):
        found = scores(model, rows)
        energy = energy_of_the_modes(model, rows)
        model.modes.float()
        assert spearmanr(found, energy).statistic > 0.99999


def test_default_prototypes_rank_as_the_mixture_of_modes_where_dimensions_abound(wide):
    closed_form, prototypes, _, new = wide
    assert closed_form.modes.n_modes == 2
    model = build(closed_form, prototypes)
    assert len(model.prototypes.mean) == 32
    found, energy = (np.concatenate([of(model, rows) for rows in new]) for of in (scores, energy_of_the_modes))
    model.modes.float()
    assert spearmanr(found, energy).statistic > 0.999


def test_global_score_of_new_normals_is_near_zero_and_of_order_one(wide):
    closed_form, prototypes, normals, (new, *_) = wide
    fresh, fitted = (scores(build(closed_form, prototypes), rows) for rows in (new, normals))
    assert abs(fresh.mean()) < 1
    assert 0.3 < fresh.std() < 3
    assert fitted.mean() < -3  # far too small in-sample: this is what cross-fitting is for


def test_mutual_information_has_room_and_a_gradient_at_the_default_dimension(wide):
    closed_form, prototypes, normals, _ = wide
    model = build(closed_form, prototypes)
    z, (start, _) = closed_form.standardiser.z(normals), closed_form.starts
    parameters = [*model.velocity.parameters(), *model.prototypes.parameters()]

    def posterior():
        return model.prototypes.posterior(model.psi(torch.from_numpy(z), start), 50.0)

    before = float(information(posterior().detach()).mutual)
    gradients = torch.autograd.grad(mim_loss(posterior(), model.prototypes.weight), parameters, allow_unused=True)
    size = sum(float(g.square().sum()) for g in gradients if g is not None) ** 0.5
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter -= 0.2 * gradient / size
    after = float(information(posterior().detach()).mutual)
    assert 0.01 < before / np.log(32) < 0.99
    assert after > before + 1e-4


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


def test_too_many_prototypes_are_capped_and_said(make_problem, caplog):
    with caplog.at_level(logging.INFO):
        problem = make_problem(n_modes=1, n=25, n_prototypes=32)
    assert len(problem.model.prototypes.mean) == 25
    assert "32 prototypes for 25 normals" in caplog.text


def test_printed_prototypes_have_the_scale_of_their_inertia(make_problem):
    problem = make_problem(printed_start=True)
    prototypes = problem.model.prototypes
    z = torch.from_numpy(problem.closed_form.standardiser.z(problem.data.normals))
    distance = torch.cdist(z, prototypes.mean.detach()).square().min(1).values
    assert float(prototypes.scale) ** 2 == pytest.approx(float(distance.sum()) / z.numel(), rel=1e-3)
    assert prototypes.log_volume.abs().max() == 0


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_repeated_normals_leave_a_finite_model(make_rows):
    rng = np.random.default_rng(0)
    pooled = np.repeat(rng.normal(size=(6, 8)), 5, axis=0)
    rows = make_rows(pooled)
    held_back = make_rows(rng.normal(size=(5, 8)))
    closed_form, _ = fit_closed_form(rows, rows.take(np.arange(0)), held_back, 1, 10, top_share=0.1, seed=0)
    prototypes = build(closed_form, initialise(closed_form, rows, 10, transport_steps=1, seed=0)).prototypes
    x = torch.from_numpy(closed_form.standardiser.z(rows))
    assert prototypes.posterior(x, 50.0).isfinite().all()
    assert prototypes.logit.isfinite().all()


def test_starts_of_the_normals_are_by_modes_without_them(wide):
    closed_form, prototypes, normals, _ = wide
    z, fold = closed_form.standardiser.z(normals), folds(len(normals), 0)
    fitted = FittedModes(closed_form.modes, closed_form.labels, closed_form.shrinkage, 0.0)
    partial = modes_without_fold(z, fitted, fold)
    start, _ = closed_form.starts
    torch.testing.assert_close(start, start_by_fold(partial, z, fold))
    for i in (0, 17, 39):
        alone = closed_form_start(partial[fold[i]], z[i : i + 1])
        torch.testing.assert_close(start.psi[i], alone.psi[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(start.log_prob[i], alone.log_prob[0], rtol=1e-4, atol=1e-2)
    mixture = build(closed_form, prototypes).prototypes
    inside = closed_form_start(closed_form.modes, z)
    energy, fitted_energy = (-mixture.log_prob(one.psi).detach() for one in (start, inside))
    assert (energy > fitted_energy).all()


@pytest.mark.parametrize("printed_start", [False, True])
def test_closed_form_survives_storage(make_problem, printed_start):
    closed_form = make_problem(printed_start=printed_start).closed_form
    again = unpack(closed_form.pack({}))
    assert again.printed == closed_form.printed == printed_start
    first, second = closed_form.pack({}), again.pack({})
    assert first.details == second.details and set(first.tensors) == set(second.tensors)
    assert all(torch.equal(value, second.tensors[name]) for name, value in first.tensors.items())


def test_same_seed_gives_the_same_start(make_problem):
    first, second = make_problem(seed=3), make_problem(seed=3)
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
