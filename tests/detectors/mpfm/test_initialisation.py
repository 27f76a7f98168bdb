import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from mpfm_kedro.detectors.mpfm.initialisation import (
    fit_prototypes,
    fit_standardiser,
    initialise,
    move,
    move_by_fold,
    standardise,
)
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.mode_fitting import FittedModes, folds, modes_without_fold
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.mutual_information import information, mim_loss

D = 2304


def build(init, prototypes=None, printed_start=False):
    torch.manual_seed(0)
    return MPFM(
        init.standardiser,
        init.fitted.modes,
        prototypes or init.prototypes,
        init.global_center,
        init.global_spread,
        hidden=8,
        transport_steps=1,
        top_share=0.1,
        patches=init.patches,
        printed_start=printed_start,
    )


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
    init = initialise(normals, held_back, 32, 4, 50, 0)
    return init, normals, new


def test_standardiser_centres_and_scales_normals(make_rows):
    rng = np.random.default_rng(0)
    rows = make_rows(5 + 3 * rng.normal(size=(600, 6)))
    standardiser = fit_standardiser(rows)
    z = standardise(standardiser, rows.pooled)
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
    modes = problem.init.fitted.modes
    assert modes.n_modes == 1
    model = build(problem.init, PrototypeMixture(modes.target_mean, torch.ones(1), 1.0, modes.log_det))
    rows = problem.unseen_anomalies
    energy = energy_of_the_modes(model, rows) / rows.pooled.shape[1]
    model.modes.float()
    np.testing.assert_allclose(
        scores(model, rows), (energy - problem.init.global_center) / problem.init.global_spread, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("n_modes", [2, 3])
def test_untrained_global_score_ranks_as_the_mixture_of_modes(make_problem, n_modes):
    problem = make_problem(n_modes=n_modes)
    modes = problem.init.fitted.modes
    assert modes.n_modes == n_modes
    model = build(problem.init, PrototypeMixture(modes.target_mean, modes.weight, 1.0, modes.log_det))
    for rows in (problem.unseen_normals, problem.unseen_anomalies):
        found = scores(model, rows)
        energy = energy_of_the_modes(model, rows)
        model.modes.float()
        assert spearmanr(found, energy).statistic > 0.99999


def test_default_prototypes_rank_as_the_mixture_of_modes_where_dimensions_abound(wide):
    init, _, new = wide
    assert init.fitted.modes.n_modes == 2
    assert len(init.prototypes.mean) == 32
    model = build(init)
    found, energy = (np.concatenate([of(model, rows) for rows in new]) for of in (scores, energy_of_the_modes))
    model.modes.float()
    assert spearmanr(found, energy).statistic > 0.999


def test_global_score_of_new_normals_is_near_zero_and_of_order_one(wide):
    init, normals, (new, *_) = wide
    fresh, fitted = scores(build(init), new), scores(build(init), normals)
    assert abs(fresh.mean()) < 1
    assert 0.3 < fresh.std() < 3
    assert fitted.mean() < -3  # far too small in-sample: this is what cross-fitting is for


def test_mutual_information_has_room_and_a_gradient_at_the_default_dimension(wide):
    init, normals, _ = wide
    model = build(init)
    fold = folds(len(normals), 0)
    z = standardise(init.standardiser, normals.pooled)
    start = move_by_fold(modes_without_fold(z, init.fitted, fold), z, fold)
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
    fitted = FittedModes(modes, labels, np.zeros(len(sizes)), 0.0)
    prototypes = fit_prototypes(psi, fitted, n_prototypes, 0, printed_start=False)
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
    assert len(problem.init.prototypes.mean) == 25
    assert "32 prototypes for 25 normals" in caplog.text


def test_printed_prototypes_have_the_scale_of_their_inertia(make_problem):
    problem = make_problem(printed_start=True)
    prototypes = problem.init.prototypes
    z = torch.from_numpy(standardise(problem.init.standardiser, problem.data.normals.pooled))
    distance = torch.cdist(z, prototypes.mean.detach()).square().min(1).values
    assert float(prototypes.scale) ** 2 == pytest.approx(float(distance.sum()) / z.numel(), rel=1e-3)
    assert prototypes.log_volume.abs().max() == 0


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_repeated_normals_leave_a_finite_model(make_rows):
    rng = np.random.default_rng(0)
    pooled = np.repeat(rng.normal(size=(6, 8)), 5, axis=0)
    rows = make_rows(pooled)
    init = initialise(rows, make_rows(rng.normal(size=(5, 8))), 10, 1, 10, 0)
    x = torch.from_numpy(standardise(init.standardiser, rows.pooled))
    assert init.prototypes.posterior(x, 50.0).isfinite().all()
    assert init.prototypes.logit.isfinite().all()


def test_moved_by_fold_uses_the_modes_without_the_sample(wide):
    init, normals, _ = wide
    z = standardise(init.standardiser, normals.pooled)
    fold = folds(len(z), 0)
    partial = modes_without_fold(z, init.fitted, fold)
    moved = move_by_fold(partial, z, fold)
    for i in (0, 17, 39):
        alone = move(partial[fold[i]], z[i : i + 1])
        torch.testing.assert_close(moved.psi[i], alone.psi[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(moved.log_prob[i], alone.log_prob[0], rtol=1e-4, atol=1e-2)
    energy, inside = (-init.prototypes.log_prob(start.psi).detach() for start in (moved, move(init.fitted.modes, z)))
    assert (energy > inside).all()


def test_same_seed_gives_the_same_start(make_problem):
    first, second = make_problem(seed=3), make_problem(seed=3)
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
