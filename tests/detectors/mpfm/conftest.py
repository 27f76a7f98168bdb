import pytest
import torch

from mpfm_kedro.detectors.base import Artefact, Context
from mpfm_kedro.detectors.mpfm.closed_form import CrossFit
from mpfm_kedro.detectors.mpfm.modules import Modules
from mpfm_kedro.detectors.mpfm.training import initial_modules, training_set
from mpfm_kedro.parameters import TrainingParameters
from small_mpfm import CPU, fit, make_data, specify

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Problem:
    """A small dataset with its closed forms, its modules at step 0 and its training set."""

    def __init__(self, n_known=3, **changes):
        self.data, *_ = make_data(n_known=n_known)
        self.cross_fit = CrossFit.restore(fit(specify(trained=False, **changes), self.data), self.data, 0, 0, CPU)
        _, self.rounds, self.models, self.held_out, self.z = self.cross_fit
        self.stage = specify(**changes)["training"][1]
        self.parameters = TrainingParameters.model_construct(**self.stage)
        self.modules = self.start(self.z)
        self.training = training_set(self.cross_fit, self.stage, Context(CPU))

    def start(self, z):
        """The modules at step 0 for these features."""
        return initial_modules(self.cross_fit._replace(z=z), self.stage, 0)

    def of_round(self, number):
        """The modules of one round."""
        return Modules.restore(Artefact(self.modules.state_dict(), {"parameters": self.stage}), number)

    def wake(self):
        """Small random weights where the network starts at zero, so that gradients pass."""
        write = self.modules.flow.velocity.network.write
        write.data.copy_(0.05 * torch.randn(write.shape))
        return self

    def batch(self):
        return self.training.batch(torch.randint(60, (12,)), torch.randint(6, (6,)))


@pytest.fixture(scope="session")
def make_problem():
    return Problem


@pytest.fixture
def problem():
    return Problem().wake()
