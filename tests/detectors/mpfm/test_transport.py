import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.transport import transport
from mpfm_kedro.detectors.mpfm.velocity import VelocityMixture


def field(modes, awake=False):
    torch.manual_seed(0)
    velocity = VelocityMixture(modes.mean.shape[1], 1, 8, modes).double()
    if awake:
        torch.nn.init.normal_(velocity.mean.weight, std=0.1)
    return velocity


def points(modes, n=30):
    torch.manual_seed(1)
    return modes.mean[torch.arange(n) % modes.n_modes] + torch.randn(n, modes.mean.shape[1], dtype=torch.float64)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_any_number_of_steps_is_exact_for_one_mode(make_modes, steps):
    modes = make_modes(ranks=(3,))
    z = points(modes)
    torch.testing.assert_close(transport(field(modes), z, steps), modes.start(z).psi)


def test_one_step_with_several_modes_is_their_closed_form_transport(make_modes):
    modes = make_modes(ranks=(1, 2, 4), far=0.7)
    z = points(modes)
    torch.testing.assert_close(transport(field(modes), z, 1), modes.start(z).psi)


@pytest.mark.parametrize("ranks", [(3,), (1, 4)])
def test_known_start_replaces_the_closed_form_part(make_modes, ranks):
    modes = make_modes(ranks=ranks, far=0.7)
    velocity, z = field(modes, awake=True), points(modes)
    start = modes.start(z)
    torch.testing.assert_close(transport(velocity, z, 1, start), transport(velocity, z, 1))
    torch.testing.assert_close(
        transport(velocity, z, 1, start._replace(psi=start.psi + 2)), transport(velocity, z, 1) + 2
    )


def test_known_start_is_ignored_with_several_steps(make_modes):
    modes = make_modes()
    z = points(modes)
    torch.testing.assert_close(transport(field(modes), z, 2, modes.start(z + 1)), transport(field(modes), z, 2))


def test_gradients_reach_the_features_and_every_layer(make_modes):
    modes = make_modes()
    velocity, z = field(modes, awake=True), points(modes).requires_grad_()
    torch.nn.init.normal_(velocity.logit.weight, std=0.1)
    transport(velocity, z, 2).square().sum().backward()
    assert z.grad.abs().sum() > 0
    assert all(parameter.grad.abs().sum() > 0 for parameter in velocity.parameters())


def test_coupling_inside_the_mode_keeps_the_evidence_and_an_independent_draw_erases_it(make_modes):
    modes = make_modes(d=12, ranks=(6,), seed=3)
    torch.manual_seed(0)
    z = modes.mean + torch.linspace(0.2, 4, 3000, dtype=torch.float64)[:, None] * torch.randn(3000, 12)
    prototypes = PrototypeMixture(modes.target_mean.float(), torch.ones(1), 1.0)
    evidence = -modes.log_prob(z)[:, 0]
    coupled = -prototypes.log_prob(modes.endpoint(z).float())
    independent = -prototypes.log_prob(prototypes.sample(len(z)))
    assert spearmanr(evidence, coupled.detach()).statistic > 0.999999
    assert abs(spearmanr(evidence, independent.detach()).statistic) < 0.06


def test_best_velocity_for_an_independent_draw_sends_every_image_onto_its_prototype(make_modes):
    modes = make_modes(d=3, ranks=(2,))
    z = points(modes, 20_000)
    prototypes = PrototypeMixture(modes.target_mean.float(), torch.ones(1), 1.0)
    inputs = np.column_stack([z.numpy(), np.ones(len(z))])
    for end, slope in [(prototypes.sample(len(z)).double(), 0.0), (modes.endpoint(z), None)]:
        # least squares is the best velocity at t = 0; one step along it
        coefficients = np.linalg.lstsq(inputs, (end - z).numpy(), rcond=None)[0]
        arrived = z.numpy() + inputs @ coefficients
        if slope is None:
            np.testing.assert_allclose(arrived, end.numpy(), atol=1e-8)
        else:
            assert arrived.std(0).max() < 0.05
            np.testing.assert_allclose(arrived.mean(0), modes.target_mean[0].numpy(), atol=0.05)
