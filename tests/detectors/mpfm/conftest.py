from collections import namedtuple

import numpy as np
import pytest
import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.detectors.mpfm.closed_form import fit_closed_form
from mpfm_kedro.detectors.mpfm.flow_training import initial_flow, training_set, unseen_start
from mpfm_kedro.detectors.mpfm.modes import Modes
from mpfm_kedro.detectors.mpfm.objective import Options
from mpfm_kedro.detectors.mpfm.trainer import Schedule

CPU = torch.device("cpu")

torch.set_num_threads(1)

Problem = namedtuple("Problem", "data closed_forms flow training unseen_normals unseen_anomalies")


@pytest.fixture(scope="session")
def make_modes():
    """Random modes in double precision, one for each rank."""

    def make(seed=0, d=5, ranks=(2, 4), far=2.0):
        rng = np.random.default_rng(seed)
        basis = np.zeros((len(ranks), d, max(ranks)))
        residual_variance = rng.uniform(0.3, 2.0, len(ranks))
        variance = np.repeat(residual_variance[:, None], max(ranks), axis=1)
        for j, rank in enumerate(ranks):
            basis[j, :, :rank] = np.linalg.qr(rng.normal(size=(d, rank)))[0]
            variance[j, :rank] = rng.uniform(0.2, 4.0, rank)
        arrays = {
            "weight": rng.dirichlet(np.full(len(ranks), 5.0)),
            "mean": far * rng.normal(size=(len(ranks), d)),
            "basis": basis,
            "variance": variance,
            "residual_variance": residual_variance,
            "target_mean": far * rng.normal(size=(len(ranks), d)),
        }
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        modes = Modes(**tensors).double()
        for name, tensor in tensors.items():  # what rounding to single precision took away
            getattr(modes, name).copy_(tensor)
        return modes

    return make


@pytest.fixture(scope="session")
def covariances():
    """Dense Σ (J, d, d) of modes."""

    def dense(modes):
        inside = torch.einsum("jdr,jr,jer->jde", modes.basis, modes.variance, modes.basis)
        outside = torch.eye(modes.mean.shape[1], dtype=modes.mean.dtype) - modes.basis @ modes.basis.mT
        return inside + modes.residual_variance[:, None, None] * outside

    return dense


@pytest.fixture(scope="session")
def make_rows():
    """Stored features of images: pooled statistics as given, maps random with a bright spot in the first channel."""

    def make(pooled, spot=0.0, seed=0, channels=4, side=4, source=None):
        rng = np.random.default_rng(seed)
        n = len(pooled)
        maps = rng.normal(size=(n + 3, channels, side, side))
        rows = rng.permutation(n + 3)[:n]
        maps[rows, 0, 1, 2] += spot
        source = np.arange(n) if source is None else source
        return FeatureRows(np.asarray(pooled, np.float32), maps.astype(np.float16), rows, source)

    return make


@pytest.fixture(scope="session")
def schedule():
    return Schedule(
        epochs=3,
        iterations_per_epoch=4,
        normals_per_batch=12,
        anomalies_per_batch=6,
        pseudo_share=0.5,
        learning_rate=2e-3,
        weight_decay=1e-5,
        clip_norm=1.0,
    )


@pytest.fixture(scope="session")
def options():
    return Options(mim_weight=0.1, mim_sharpness=50.0, push_margin=0.1)


@pytest.fixture(scope="session")
def make_problem(make_rows):
    """A small dataset of known modes with its closed forms, initial flow and training set."""

    def make(
        n_modes=2,
        d=10,
        n=60,
        n_prototypes=6,
        n_anomalies=5,
        cutmix=2,
        seed=0,
        coupling="repaired",
        printed_start=False,
        precision="fp32",
        transport_steps=1,
    ):
        rng = np.random.default_rng(seed)
        means = 4.0 * rng.normal(size=(n_modes, d))
        shapes = [(np.linalg.qr(rng.normal(size=(d, d)))[0] * np.geomspace(1.0, 0.2, d)).T for _ in range(n_modes)]
        shift = 1.5 * np.linalg.qr(rng.normal(size=(d, 1)))[0][:, 0]

        def normals(size):
            mode = np.arange(size) % n_modes
            return means[mode] + np.einsum("nd,nde->ne", rng.normal(size=(size, d)), np.stack(shapes)[mode])

        fitted = normals(n * n_modes)
        source = np.tile(np.arange(len(fitted)), cutmix)
        cut = fitted[source] + 0.6 * rng.normal(size=(len(source), d))
        data = TrainingData(
            make_rows(fitted, seed=1),
            make_rows(cut, spot=2.0, seed=2, source=source),
            make_rows(normals(n_anomalies) + shift, spot=4.0, seed=3),
        )
        closed_forms, _ = fit_closed_form(
            data.normals, 4, 20, n_prototypes=10, top_share=0.1, unseen_normals=200, seed=seed, device=CPU
        )
        start = None if printed_start else unseen_start(closed_forms, data.normals)
        parameters = {"n_prototypes": n_prototypes, "hidden": 8, "transport_steps": transport_steps}
        z = closed_forms.final.standardiser.z(data.normals)
        flow = initial_flow(closed_forms, z, start, parameters | {"precision": precision}, seed)
        return Problem(
            data,
            closed_forms,
            flow,
            training_set(flow, closed_forms, data, start, seed, coupling == "repaired"),
            make_rows(normals(200), seed=6),
            make_rows(normals(200) + shift, spot=4.0, seed=7),
        )

    return make


@pytest.fixture
def problem(make_problem):
    return make_problem()


@pytest.fixture(scope="session")
def wake():
    """Small random weights for the layers that start at zero, so that gradients pass them."""

    def randomise(flow, size=0.05):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in (flow.velocity.mean.weight, flow.velocity.logit.weight):
                weight.copy_(size * torch.randn(weight.shape, generator=generator))
        return flow

    return randomise
