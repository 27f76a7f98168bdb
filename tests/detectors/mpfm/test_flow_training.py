import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from mpfm_kedro.detectors.mpfm.closed_form import ROWS_AT_ONCE, closed_form_start, fit_closed_form
from mpfm_kedro.detectors.mpfm.flow_training import _paths, initial_flow, objective_options, unseen_start
from mpfm_kedro.detectors.mpfm.mode_fitting import build_modes, spectra_of
from mpfm_kedro.detectors.mpfm.mutual_information import information, mim_loss

CPU = torch.device("cpu")

D = 2304
PARAMETERS = {"n_prototypes": 32, "hidden": 8, "transport_steps": 1, "precision": "fp32"}


@pytest.fixture(scope="module")
def wide(make_rows):
    """Closed forms of two modes with far fewer normals than dimensions, the normals, and three kinds of new images."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(2, 25, D)) * np.geomspace(1.0, 0.1, 25)[:, None]
    mean = 3 * rng.normal(size=(2, D))

    def draw(size, seed, level=0.3):
        mode = np.arange(size) % 2
        factor = rng.normal(size=(size, 25))
        noise = level * rng.normal(size=(size, D))
        return make_rows(mean[mode] + np.einsum("nf,nfd->nd", factor, loadings[mode]) + noise, seed=seed)

    normals = draw(150, 1)
    new = draw(80, 3), draw(40, 4, level=0.33), draw(40, 5, level=0.5)
    closed_forms, _ = fit_closed_form(normals, 4, 50, 10, 0.1, 200, 0, CPU)
    return closed_forms, normals, new


@pytest.fixture(scope="module")
def flow_of(wide):
    closed_forms, normals, _ = wide
    z = closed_forms.final.standardiser.z(normals)
    start = unseen_start(closed_forms, normals)
    return lambda: (initial_flow(closed_forms, z, start, PARAMETERS, 0), z, start)


def test_untrained_flow_ranks_as_the_closed_form_where_dimensions_abound(wide, flow_of):
    closed_forms, _, new = wide
    flow, _, _ = flow_of()
    final = closed_forms.final
    assert final.modes.n_modes == 2
    assert len(flow.prototypes.mean) == 32
    found = np.concatenate([flow.score(final.standardiser.z(rows)) for rows in new])
    assert spearmanr(found, np.concatenate([final.score(rows).g for rows in new])).statistic > 0.999


def test_score_of_new_normals_is_near_zero_and_of_order_one(wide, flow_of):
    closed_forms, _, (new, *_) = wide
    flow, z, _ = flow_of()
    fresh, fitted = flow.score(closed_forms.final.standardiser.z(new)), flow.score(z)
    assert abs(fresh.mean()) < 1
    assert 0.3 < fresh.std() < 3
    assert fitted.mean() < -3  # far too small in-sample: this is what cross-fitting is for


def test_mutual_information_has_room_and_a_gradient_at_the_default_dimension(flow_of):
    flow, z, start = flow_of()
    parameters = [*flow.velocity.parameters(), *flow.prototypes.parameters()]

    def posterior():
        return flow.prototypes.posterior(flow.psi(torch.from_numpy(z).float(), start), 50.0)

    before = float(information(posterior().detach()).mutual)
    gradients = torch.autograd.grad(mim_loss(posterior(), flow.prototypes.weight), parameters, allow_unused=True)
    size = sum(float(g.square().sum()) for g in gradients if g is not None) ** 0.5
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter -= 0.2 * gradient / size
    after = float(information(posterior().detach()).mutual)
    assert 0.01 < before / np.log(32) < 0.99
    assert after > before + 1e-4


def test_starts_of_the_normals_are_by_modes_without_them(wide, flow_of):
    closed_forms, _, _ = wide
    flow, z, start = flow_of()
    fold, labels = closed_forms.fold, closed_forms.labels
    for i in (0, 17, 39):
        own = fold != fold[i]
        modes = build_modes(spectra_of(z[own], labels[own], 2), z[own], labels[own], closed_forms.shrinkage)
        modes.target_mean.copy_(closed_forms.final.modes.target_mean)
        alone = closed_form_start(modes, z[i : i + 1])
        torch.testing.assert_close(start.psi[i], alone.psi[0], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(start.log_prob[i], alone.log_prob[0], rtol=1e-4, atol=1e-2)
    inside = closed_form_start(closed_forms.final.modes, z)
    energy, fitted_energy = (-flow.prototypes.log_prob(one.psi).detach() for one in (start, inside))
    assert (energy > fitted_energy).all()


def test_same_seed_gives_the_same_flow(flow_of):
    first, second = flow_of()[0].state_dict(), flow_of()[0].state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_global_random_state_is_left_alone(problem, make_problem):
    before = torch.get_rng_state()
    make_problem()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("n_known", "weight"), [(0, 1), (1, 1), (4, 0.25)])
def test_pseudo_anomalies_count_less_the_more_anomalies_are_known(n_known, weight):
    parameters = {"mim_weight": 0.1, "mim_sharpness": 50.0, "push_margin": 0.1, "mutual_information": "printed"}
    options = objective_options(parameters, n_known)
    assert options.pseudo_weight == weight
    assert options.printed_mutual_information


def test_paths_are_those_of_their_batches_and_never_held_twice(flow_of):
    flow, z, _ = flow_of()
    z = np.tile(z.astype(np.float32), (4, 1))[: 2 * ROWS_AT_ONCE + 7]
    with torch.profiler.profile(profile_memory=True) as profile:
        paths = _paths(flow, z, torch.Generator().manual_seed(0))
    joined = sum(event.cpu_memory_usage for event in profile.key_averages() if event.key == "aten::cat")
    assert joined < sum(part.nbytes for part in paths) / 10
    generator = torch.Generator().manual_seed(0)
    pieces = (whole.split(ROWS_AT_ONCE) for whole in (torch.from_numpy(z), *paths))
    for piece, *parts in zip(*pieces, strict=True):
        with torch.inference_mode():
            expected = flow.modes.path(piece, flow.modes.endpoint(piece, generator))
        assert all(torch.equal(part, own) for part, own in zip(parts, expected, strict=True))
