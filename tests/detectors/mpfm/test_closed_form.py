from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from mpfm_kedro.detectors.mpfm.closed_form import (
    fit_closed_form,
    fit_standardisers,
    n_left_out,
    top_mean,
    unpack,
    unpack_final,
)
from mpfm_kedro.detectors.mpfm.mode_fitting import folds
from mpfm_kedro.detectors.mpfm.patches import smooth

CPU = torch.device("cpu")

EXACT = ("g", "r", "mode")


def two_modes(n, d=8, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.geomspace(1, 0.3, d) + 5 * (np.arange(n) % 2)[:, None]


def standardise_all(rows):
    (found,) = fit_standardisers(rows, np.ones((1, len(rows)), dtype=bool))
    return found


@pytest.fixture(scope="module")
def fit_rows(make_rows):
    def of(pooled, n_prototypes=20, max_modes=2, min_mode_size=15, seed=0, map_seed=0):
        rows = make_rows(pooled, seed=map_seed)
        return rows, fit_closed_form(rows, max_modes, min_mode_size, n_prototypes, 0.1, 200, seed, CPU)[0]

    return of


@pytest.fixture(scope="module")
def fitted(fit_rows):
    return fit_rows(two_modes(100))


def test_standardiser_centres_and_scales_normals(make_rows):
    rng = np.random.default_rng(0)
    rows = make_rows(5 + 3 * rng.normal(size=(600, 6)))
    standardiser = standardise_all(rows)
    z = standardiser.z(rows)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(z.std(0), 1, atol=1e-4)
    maps = rows.map_batch().double().numpy()
    np.testing.assert_allclose(standardiser.map_center, maps.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(standardiser.map_spread, maps.std((0, 2, 3)), atol=1e-5)


def test_constant_features_keep_their_scale(make_rows):
    pooled = np.column_stack([np.full(10, 4.0), np.arange(10.0)])
    assert standardise_all(make_rows(pooled)).pooled_spread[0] == 1


def test_constant_channels_keep_their_scale(make_rows):
    rows = make_rows(np.random.default_rng(0).normal(size=(300, 3)))
    rows.maps[:, 2] = 12.3
    assert standardise_all(rows).map_spread[2] == 1


def test_standardiser_of_a_subset_is_that_of_its_rows_alone(make_rows):
    rows = make_rows(np.random.default_rng(0).normal(size=(40, 3)))
    subset = np.arange(40) % 3 > 0
    _, found = fit_standardisers(rows, np.stack([np.ones(40, dtype=bool), subset]))
    alone = standardise_all(rows.take(np.flatnonzero(subset)))
    for name, value in vars(alone).items():
        torch.testing.assert_close(getattr(found, name), value)


@pytest.mark.parametrize(("n", "expected"), [(1131, 1), (1000, 1), (999, 2), (271, 4), (75, 5), (4, 4), (2, 2)])
def test_as_many_folds_are_left_out_as_have_two_hundred_normals_together(n, expected):
    assert n_left_out(folds(n, 0), 200) == expected


def test_global_score_is_the_energy_of_the_mixture_per_dimension(fitted, covariances, make_rows):
    final = fitted[1].final
    new = make_rows(two_modes(30, seed=5) + 0.5)
    z, modes = final.standardiser.z(new).astype(np.float64), final.modes
    assert modes.n_modes == 2
    log_density = [
        np.log(float(weight)) + multivariate_normal(mean.double().numpy(), covariance.double().numpy()).logpdf(z)
        for weight, mean, covariance in zip(modes.weight, modes.mean, covariances(modes), strict=True)
    ]
    scores = final.score(new)
    np.testing.assert_allclose(scores.g, -logsumexp(log_density, axis=0) / 8, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(scores.mode, np.argmax(log_density, axis=0))


def test_residual_score_is_the_mean_energy_of_the_most_unusual_patches(fitted, make_rows):
    final = fitted[1].final
    new = make_rows(two_modes(9, seed=5), spot=6.0, seed=3)
    scores = final.score(new)
    energy = final.patches.energy(smooth(new.map_batch()), torch.from_numpy(scores.mode))
    for found, positions in zip(scores.r, energy.flatten(1).tolist(), strict=True):
        assert found == pytest.approx(max(positions))  # one of 16 positions is in the top tenth
    np.testing.assert_allclose(top_mean(torch.arange(20.0).view(1, 4, 5), 0.2), [17.5])


def test_unseen_scores_are_those_of_the_models_without_the_normals(fitted):
    rows, closed_forms = fitted
    assert len(closed_forms.without) == 5
    positions = [closed_forms.positions(number) for number in range(5)]
    assert sorted(np.concatenate(positions)) == list(range(len(rows)))
    found = [
        closed_form.score(rows.take(own)) for closed_form, own in zip(closed_forms.without, positions, strict=True)
    ]
    for name in EXACT:
        expected = np.concatenate([getattr(each, name) for each in found])
        np.testing.assert_allclose(getattr(closed_forms.unseen, name), expected, rtol=1e-4, atol=1e-5)
    seen = closed_forms.final.score(rows)
    assert closed_forms.unseen.g.mean() > seen.g.mean()
    assert closed_forms.unseen.r.mean() > seen.r.mean()


@pytest.mark.parametrize("changed_fold", [0, 1])
def test_a_model_knows_nothing_of_the_fold_it_leaves_out(fit_rows, changed_fold):
    """Only which modes there are, their shrinkage and the scale of distances rest on all unseen normals."""
    pooled = two_modes(100)
    rows, before = fit_rows(pooled)
    chosen = before.positions(changed_fold)[:3]
    pooled[chosen] += 0.01
    rows.maps[rows.rows[chosen]] += 1
    after, _ = fit_closed_form(replace(rows, pooled=pooled.astype(np.float32)), 2, 15, 20, 0.1, 200, 0, CPU)
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_array_equal(before.shrinkage, after.shrinkage)
    one, other = (each.without[0].tensors("without0") for each in (before, after))
    differing = {name for name, value in one.items() if not torch.equal(value, other[name])}
    assert "without0.patches.scale" in differing
    known = {"without0.standardiser.pooled_center", "without0.modes.mean", "without0.patches.mean"}
    assert differing == {"without0.patches.scale"} if changed_fold == 0 else differing > known


def test_all_models_measure_distances_on_the_scale_of_unseen_normals(fitted):
    rows, closed_forms = fitted
    scale = closed_forms.final.patches.scale
    assert all(torch.equal(each.patches.scale, scale) for each in closed_forms.without)
    energy = torch.cat(
        [
            closed_form.energy(rows.take(own), closed_form.modes.log_prob(torch.from_numpy(z).float()).argmax(1))
            for number, closed_form in enumerate(closed_forms.without)
            for own in [closed_forms.positions(number)]
            for z in [closed_form.standardiser.z(rows.take(own))]
        ]
    )
    # the 0.9 quantile of unseen normals lies on both sides of 1, for half of the scale is the same everywhere
    assert float(energy.quantile(0.9)) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("n", [12, 100])
def test_closed_forms_survive_storage(fit_rows, make_rows, n):
    _, closed_forms = fit_rows(two_modes(n))
    artefact = closed_forms.pack({"modes_tried": []})
    again, final = unpack(artefact), unpack_final(artefact)
    new = make_rows(two_modes(20, seed=5))
    pairs = [(closed_forms.final, again.final), (closed_forms.final, final)]
    for one, other in [*pairs, *zip(closed_forms.without, again.without, strict=True)]:
        first, second = one.score(new), other.score(new)
        for name in EXACT:
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    second = again.pack({"modes_tried": []})
    assert artefact.details == second.details and set(artefact.tensors) == set(second.tensors)
    assert all(torch.equal(value, second.tensors[name]) for name, value in artefact.tensors.items())


@pytest.mark.parametrize("n", range(2, 11))
def test_few_normals_leave_finite_scores(fit_rows, make_rows, n):
    _, closed_forms = fit_rows(two_modes(n), n_prototypes=2000, max_modes=4, min_mode_size=1)
    assert len(closed_forms.without) == min(n, 5)
    for scores in (closed_forms.final.score(make_rows(two_modes(20, seed=5))), closed_forms.unseen):
        assert np.isfinite(scores.g).all() and np.isfinite(scores.r).all()
    assert len(closed_forms.unseen.g) == n


def test_repeated_normals_leave_finite_scores(fit_rows, make_rows):
    pooled = np.repeat(np.random.default_rng(0).normal(size=(6, 8)), 5, axis=0)
    rows, closed_forms = fit_rows(pooled)
    rows.maps[:] = rows.maps[:1]
    closed_forms, _ = fit_closed_form(rows, 2, 10, 20, 0.1, 200, 0, CPU)
    scores = closed_forms.final.score(make_rows(two_modes(20, seed=5)))
    assert np.isfinite(scores.g).all() and np.isfinite(scores.r).all()


def test_a_small_mode_that_lies_in_one_fold_is_no_error(make_rows):
    fold = folds(100, 0)
    pooled = np.random.default_rng(0).normal(size=(100, 6))
    pooled[np.flatnonzero(fold == 1)[:10]] += 6
    rows = make_rows(pooled)
    closed_forms, _ = fit_closed_form(rows, 2, 5, 20, 0.1, 200, 0, CPU)
    assert closed_forms.final.modes.n_modes == 2
    assert not {0, 1} <= set(closed_forms.labels[fold != 1])
    assert np.isfinite(closed_forms.unseen.g).all() and np.isfinite(closed_forms.unseen.r).all()


def test_no_rows_have_no_scores(fitted):
    rows, closed_forms = fitted
    scores = closed_forms.final.score(rows.take(np.arange(0)))
    assert [len(getattr(scores, name)) for name in EXACT] == [0, 0, 0]


def test_same_seed_gives_the_same_closed_forms(fit_rows):
    first, second, other = (fit_rows(two_modes(60), seed=seed)[1].pack({}).tensors for seed in (3, 3, 4))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert not torch.equal(first["fold"], other["fold"])
