import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.flow import FLOW_OPTIONS, Flow, GlobalScore, load_flow
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture


def of_the_modes(modes, center=0.0, spread=1.0):
    """The untrained flow whose prototypes are the modes themselves."""
    prototypes = PrototypeMixture(modes.target_mean, modes.weight, 1.0, modes.log_det)
    return Flow(modes, prototypes, center, spread, hidden=8, transport_steps=1)


@settings(deadline=None, max_examples=30)
@given(st.floats(-5, 5), st.floats(0, 3), st.floats(-4, 4), st.floats(-4, 4))
def test_global_score_keeps_the_order(center, spread, slope, offset):
    head = GlobalScore(center, spread)
    with torch.no_grad():
        head.slope.fill_(slope)
        head.offset.fill_(offset)
    scores = head(torch.linspace(center - 2, center + 2, 9))
    assert (scores.diff() > 0).all()


def test_global_score_starts_as_the_standardised_energy():
    energy = torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(GlobalScore(2.0, 0.5)(energy), torch.tensor([-2.0, 0.0, 4.0]))


def test_global_score_of_normals_without_spread_is_finite():
    assert GlobalScore(1.0, 0.0)(torch.tensor([1.0, 1.1])).isfinite().all()


def test_untrained_score_is_the_closed_form_of_one_mode(make_problem):
    problem = make_problem(n_modes=1)
    final = problem.closed_forms.final
    rows = problem.unseen_anomalies
    found = of_the_modes(final.modes, 0.5, 2.0).score(final.standardiser.z(rows))
    np.testing.assert_allclose(found, (final.score(rows).g - 0.5) / 2, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_modes", [2, 3])
def test_untrained_score_ranks_as_the_closed_form(make_problem, n_modes):
    problem = make_problem(n_modes=n_modes)
    final = problem.closed_forms.final
    assert final.modes.n_modes == n_modes
    for rows in (problem.unseen_normals, problem.unseen_anomalies):
        found = of_the_modes(final.modes).score(final.standardiser.z(rows))
        assert spearmanr(found, final.score(rows).g).statistic > 0.9999


def test_a_score_does_not_depend_on_the_other_images(problem, wake):
    z = problem.closed_forms.final.standardiser.z(problem.unseen_normals)
    flow = wake(problem.flow)
    together, alone = flow.score(np.tile(z, (2, 1))), flow.score(z[3:4])  # more than go at once
    np.testing.assert_allclose(together[[3, 203]], alone.repeat(2), rtol=1e-4, atol=1e-4)
    assert flow.score(z[:0]).shape == (0,)


def test_a_start_that_is_given_is_used(problem):
    z = problem.training.normals.z
    own, unseen = problem.flow.score(z), problem.flow.score(z, problem.training.normals.start)
    assert unseen.mean() > own.mean()  # by modes that know the normals they are more likely
    np.testing.assert_allclose([unseen.mean(), unseen.std()], [0, 1], atol=1e-3)


def stored(flow, printed_start=False):
    tensors = {f"flow.{name}": value.detach() for name, value in flow.state_dict().items() if "modes." not in name}
    options = {"hidden": 8, "transport_steps": 1, "printed_start": printed_start, "precision": "fp32"}
    return Artefact(tensors, options)


@pytest.mark.parametrize("printed_start", [False, True])
def test_a_stored_flow_scores_alike(make_problem, wake, printed_start):
    problem = make_problem(printed_start=printed_start)
    flow = wake(problem.flow)
    artefact = stored(flow, printed_start)
    assert set(artefact.details) == set(FLOW_OPTIONS)
    again = load_flow(artefact, problem.closed_forms.final.modes)
    z = problem.closed_forms.final.standardiser.z(problem.unseen_normals)
    np.testing.assert_allclose(again.score(z), flow.score(z), rtol=1e-5, atol=1e-5)


def test_a_stored_flow_that_does_not_fit_is_an_error(problem):
    modes = problem.closed_forms.final.modes
    artefact = stored(problem.flow)
    with pytest.raises(ValueError, match="does not fit"):
        load_flow(Artefact(artefact.tensors | {"flow.velocity.other": torch.zeros(1)}, artefact.details), modes)
    del artefact.tensors["flow.velocity.mix.weight"]
    with pytest.raises(ValueError, match="does not fit"):
        load_flow(artefact, modes)
