import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mpfm_kedro.detectors.mpfm.artefact import Artefact, pack, unpack, unpack_calibration
from mpfm_kedro.detectors.mpfm.calibration import calibrate, plain_sum
from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.trainer import train


def through_files(artefact, folder):
    save_file(artefact.tensors, folder / "model.safetensors")
    return Artefact(load_file(folder / "model.safetensors"), json.loads(json.dumps(artefact.details)))


def score(model, rows):
    parts, mode = model.score(torch.from_numpy(rows.pooled), rows.map_batch())
    return torch.stack([*parts, mode.float()])


@pytest.mark.parametrize("n_modes", [1, 3])
@pytest.mark.parametrize("printed_start", [False, True])
def test_a_model_comes_back_with_its_scores(make_problem, schedule, options, wake, tmp_path, n_modes, printed_start):
    problem = make_problem(n_modes=n_modes, printed_start=printed_start)
    assert problem.init.fitted.modes.n_modes == n_modes
    model = wake(problem.model)
    train(model, problem.training, schedule, options, seed=0)
    artefact = pack(model, plain_sum(n_modes), {"labels": torch.arange(3)}, {"name": "toy"})
    again = through_files(artefact, tmp_path)
    for rows in (problem.unseen_normals, problem.unseen_anomalies):
        torch.testing.assert_close(score(unpack(again), rows), score(model, rows), rtol=1e-6, atol=1e-6)
    assert again.details["name"] == "toy"
    assert torch.equal(again.tensors["extra.labels"], torch.arange(3))
    assert (unpack(again).velocity.modes is None) == printed_start


def test_velocity_and_model_share_their_modes_again(problem):
    model = unpack(problem.initial)
    assert model.velocity.modes is model.modes


def test_no_tensors_share_memory(problem):
    storages = [t.untyped_storage().data_ptr() for t in problem.initial.tensors.values() if t.numel()]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("printed", [False, True])
def test_calibration_comes_back(problem, tmp_path, printed):
    rng = np.random.default_rng(0)
    normals, pseudo, mode = rng.normal(size=(30, 4)), rng.normal(size=(30, 4)) + 1, np.arange(30) % 2
    calibration = plain_sum(2) if printed else calibrate(normals, mode, pseudo, mode, 2)
    again = unpack_calibration(through_files(pack(problem.model, calibration, {}, {}), tmp_path))
    np.testing.assert_array_equal(again.fuse(pseudo, mode), calibration.fuse(pseudo, mode))


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_an_artefact_that_does_not_fit_is_an_error(problem, change):
    tensors = dict(problem.initial.tensors)
    if change == "missing":
        del tensors["model.velocity.mix.weight"]
    else:
        tensors["model.velocity.other"] = torch.zeros(1)
    with pytest.raises(ValueError, match="does not fit"):
        unpack(Artefact(tensors, problem.initial.details))


@pytest.mark.parametrize(
    "fresh",
    [
        False,
        True,
    ],
)
def test_a_training_state_survives_files(make_problem, schedule, options, tmp_path, fresh):
    kept = []

    def keep(state):
        kept.append(through_files(save_state(state, {"seconds": 2.5}), tmp_path))

    problem = make_problem()
    model = problem.model if fresh else unpack(problem.initial)
    history = train(model, problem.training, schedule, options, 3, checkpoint=keep)
    assert kept[0].details["seconds"] == 2.5
    state = load_state(kept[0])
    assert state.epoch == 1
    assert state.history == history[:1]
    resumed = make_problem()
    assert train(resumed.model, resumed.training, schedule, options, 3, state) == history
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
