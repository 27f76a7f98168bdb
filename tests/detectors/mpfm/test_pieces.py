"""The pieces of MPFM: fitted one by one, stored, assembled again."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm import calibration, closed_form, prototypes, training
from mpfm_kedro.detectors.mpfm.assembly import assemble, load_trained
from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.detector import load as load_detector
from mpfm_kedro.detectors.mpfm.specification import specify_mpfm
from mpfm_kedro.detectors.mpfm.trainer import train
from mpfm_kedro.parameters import PrototypeParameters, RepairParameters, TrainingParameters

CPU = torch.device("cpu")
FITS = {module.__name__: module.fit for module in (closed_form, prototypes, training, calibration)}
PROTOTYPES = PrototypeParameters(n_prototypes=6, max_modes=4, min_mode_size=20)
REPAIRS = RepairParameters(**dict.fromkeys(RepairParameters.model_fields, "repaired"))
TRAINING = TrainingParameters(
    epochs=2,
    iterations_per_epoch=4,
    normals_per_batch=12,
    anomalies_per_batch=6,
    pseudo_share=0.5,
    learning_rate=2e-3,
    weight_decay=1e-5,
    clip_norm=1.0,
    mim_weight=0.1,
    mim_sharpness=50.0,
    push_margin=0.1,
    head_penalty=0.1,
    transport_steps=1,
    hidden=8,
    precision="fp32",
    held_back_share=0.2,
    top_share=0.1,
    scores=["g", "a", "r", "n"],
)


def through_bytes(artefact):
    tensors = {name: value.contiguous() for name, value in artefact.tensors.items()}
    return Artefact(load(save(tensors)), json.loads(json.dumps(artefact.details)))


class Memory:
    """A checkpoint in memory."""

    def __init__(self, states=()):
        self.states = list(states)

    def load(self):
        return self.states[-1] if self.states else None

    def save(self, state):
        self.states.append(through_bytes(state))


def fit(specification, data, seed=0, checkpoint=None):
    """All pieces, each from what is stored of the earlier ones."""
    pieces = {}
    for piece in specification.pieces:
        module = piece.fit.partition(":")[0]
        context = Context(CPU, checkpoint=checkpoint if piece.name == "trained" else None)
        pieces[piece.name] = through_bytes(FITS[module](data, pieces, piece.parameters, seed, context))
    return pieces


@pytest.fixture(scope="module")
def data(make_rows):
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(100, 10)) * np.geomspace(1, 0.2, 10) + 4 * (np.arange(100) % 2)[:, None]
    known = rng.normal(size=(5, 10)) + 3
    return TrainingData(
        make_rows(normals, seed=1),
        make_rows(normals + 0.6 * rng.normal(size=(100, 10)), spot=2.0, seed=2),
        make_rows(np.tile(known, (2, 1)), spot=4.0, seed=3, source=np.tile(np.arange(5), 2)),
    )


def specify(trained=True, **repairs):
    return specify_mpfm("MPFM", PROTOTYPES, REPAIRS.model_copy(update=repairs), TRAINING, trained)


@pytest.mark.parametrize("transport_start", ["repaired", "printed"])
@pytest.mark.parametrize("trained", [True, False])
def test_fitted_pieces_make_a_detector(data, make_rows, transport_start, trained):
    pieces = fit(specify(trained, transport_start=transport_start), data)
    assert set(pieces) == {"closed_form", "prototypes", "calibrated"} | ({"trained"} if trained else set())
    rows = make_rows(np.random.default_rng(5).normal(size=(30, 10)), spot=3.0, seed=6)
    scores = load_detector(pieces, CPU).score_samples(rows)
    assert scores.score.shape == scores.mode.shape == (30,) and scores.parts.shape == (30, 4)
    assert np.isfinite(scores.score).all()
    again = load_detector({name: through_bytes(piece) for name, piece in pieces.items()}, CPU).score_samples(rows)
    np.testing.assert_array_equal(scores.score, again.score)


def test_a_trained_piece_holds_what_training_changes_and_nothing_else(data):
    pieces = fit(specify(), data)
    model = assemble(pieces, CPU)
    assert set(pieces["trained"].tensors) == {name for name, _ in model.named_parameters()}
    assert model.velocity.modes is model.modes


def test_a_trained_piece_that_does_not_fit_is_an_error(problem):
    tensors = dict(problem.model.named_parameters())
    with pytest.raises(ValueError, match="does not fit"):
        load_trained(problem.model, tensors | {"velocity.other": torch.zeros(1)})
    del tensors["velocity.mix.weight"]
    with pytest.raises(ValueError, match="does not fit"):
        load_trained(problem.model, tensors)


def test_interrupted_training_gives_the_same_piece(data):
    checkpoint = Memory()
    whole = fit(specify(), data, checkpoint=checkpoint)
    resumed = fit(specify(), data, checkpoint=Memory(checkpoint.states[:1]))
    assert whole["trained"].details == resumed["trained"].details
    for name, value in whole["trained"].tensors.items():
        assert torch.equal(value, resumed["trained"].tensors[name]), name


def test_a_checkpoint_holds_no_frozen_basis(data):
    checkpoint = Memory()
    fit(specify(), data, checkpoint=checkpoint)
    names = {name for name in checkpoint.states[0].tensors if name.startswith("model.")}
    assert names and not any("modes" in name or "patches" in name for name in names)


def test_a_training_state_survives_storage(make_problem, schedule, options):
    stored = []
    problem = make_problem()
    history = train(
        problem.model, problem.training, schedule, options, 3, checkpoint=lambda s: stored.append(save_state(s))
    )
    state = load_state(through_bytes(stored[0]))
    assert state.epoch == 1
    assert state.history == history[:1]
    resumed = make_problem()
    assert train(resumed.model, resumed.training, schedule, options, 3, state) == history
    for name, value in problem.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize("printed", [False, True])
def test_calibration_survives_storage(printed):
    rng = np.random.default_rng(0)
    normals, pseudo, mode = rng.normal(size=(30, 4)), rng.normal(size=(30, 4)) + 1, np.arange(30) % 2
    fitted = calibration.plain_sum(2) if printed else calibration.calibrate(normals, mode, pseudo, mode, 2)
    again = calibration.unpack(through_bytes(calibration.pack(fitted)))
    np.testing.assert_array_equal(again.fuse(pseudo, mode), fitted.fuse(pseudo, mode))


def test_each_parameter_belongs_to_the_pieces_that_it_decides():
    def touched(group, **changes):
        groups = {"prototypes": PROTOTYPES, "repairs": REPAIRS, "training": TRAINING}
        other = groups | {group: groups[group].model_copy(update=changes)}
        pairs = zip(specify_mpfm("a", **groups).pieces, specify_mpfm("a", **other).pieces, strict=True)
        return {one.name for one, changed in pairs if one.parameters != changed.parameters}

    assert touched("prototypes", n_prototypes=8) == {"prototypes"}
    assert touched("prototypes", max_modes=1) == {"closed_form"}
    assert touched("training", mim_weight=1.0) == {"trained"}
    assert touched("repairs", fusion="printed") == {"calibrated"}
    assert touched("repairs", transport_start="printed") == {"closed_form"}
    assert touched("repairs", coupling="printed") == {"trained"}
    assert touched("training", scores=["g"]) == {"trained", "calibrated"}
