import pytest
import torch

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.mpfm.closed_form import Initialised
from mpfm_kedro.detectors.mpfm.fitting import initial_modules, training_set
from mpfm_kedro.detectors.mpfm.rounds import Rounds
from mpfm_kedro.detectors.mpfm.stages import read_forms
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
        self.initialised = Initialised.restore(fit(specify(trained=False, **changes), self.data)["prototypes"], CPU)
        self.rounds = Rounds.of_folds(self.initialised.fold, self.data, 0)
        parameters = specify(**changes)["training"][1]
        self.forms, self.coupled = read_forms(parameters), parameters["transport_start"] == "repaired"
        self.parameters = TrainingParameters.model_construct(**parameters)
        standardiser = self.initialised.closed_forms[-1].standardiser
        self.z = torch.cat([standardiser.z_of(rows) for rows in (self.data.normals, self.data.anomalies)])
        self.modules = self.start(self.z)
        size = 18 if n_known else 12
        self.training = training_set(self.data, self.initialised, self.z, self.rounds, size, Context(CPU))

    def start(self, z):
        """The modules at step 0 for these features."""
        return initial_modules(self.initialised, z, self.rounds, self.forms, self.parameters, self.coupled, 0)

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
