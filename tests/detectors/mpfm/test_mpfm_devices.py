"""MPFM on a pretended GPU: a tensor left on the CPU raises; the numbers are those of the CPU."""

import dataclasses

import numpy as np
import pytest
import torch

from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.mpfm import calibration, closed_form, flow_training, learned
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.detectors.mpfm.reverse import sample_normals
from mpfm_kedro.detectors.mpfm.trainer import draw_batch, train
from pretended_cuda import CUDA, PretendedCuda, place

CPU = torch.device("cpu")
FITS = {"closed_form": closed_form, "flow": flow_training, "heads": learned, "calibrated": calibration}
REPAIRS = ("mutual_information", "normality_target", "coupling", "transport_start", "fusion")
BOTH_STARTS = pytest.mark.parametrize("start", ["repaired", "printed"])


class Memory:
    """A checkpoint in memory."""

    def __init__(self, states=()):
        self.states = list(states)

    def load(self):
        return self.states[-1] if self.states else None

    def save(self, state):
        assert all(value.device.type == "cpu" for value in state.tensors.values())
        self.states.append(state)


@pytest.fixture(scope="module")
def data(make_rows):
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(60, 10)) * np.geomspace(1, 0.2, 10) + 4 * (np.arange(60) % 2)[:, None]
    known = make_rows(np.tile(rng.normal(size=(3, 10)) + 3, (2, 1)), spot=4.0, seed=3, source=np.tile(np.arange(3), 2))
    return TrainingData(make_rows(normals, seed=1), make_rows(normals + 0.6, spot=2.0, seed=2), known)


@pytest.fixture
def parameters(schedule, options):
    """Of all pieces: one epoch of one step, with a set of named repairs switched."""

    def of(start="repaired", **changes):
        sizes = {
            "n_prototypes": 6,
            "max_modes": 2,
            "min_mode_size": 20,
            "unseen_normals": 200,
            "hidden": 8,
            "head_steps": 3,
            "head_members": 2,
        }
        others = {"top_share": 0.1, "head_top_shares": [0.1, 0.05], "transport_steps": 1, "precision": "fp32"}
        found = dataclasses.asdict(schedule) | dataclasses.asdict(options) | sizes | others
        found |= {"scores": list("garn"), "backbone": 0, "n_backbones": 1}
        return found | dict.fromkeys(REPAIRS, start) | {"epochs": 1, "iterations_per_epoch": 1} | changes

    return of


@pytest.fixture
def fit(data, parameters):
    """All pieces on a device."""

    def of(device, start="repaired", checkpoint=None, **changes):
        pieces = {}
        for name, module in FITS.items():
            context = Context(device, checkpoint=checkpoint if name == "flow" else None)
            pieces[name] = module.fit(data, dict(pieces), parameters(start, **changes), 0, context)
        return pieces

    return of


def same(one, other):
    assert one.details == other.details
    for name, value in one.tensors.items():
        assert torch.equal(value, other.tensors[name]), name


@BOTH_STARTS
def test_every_piece_is_fitted_on_the_device(fit, start):
    expected = fit(CPU, start)
    with PretendedCuda() as pretended:
        pieces = fit(CUDA, start, Memory())
        for piece in pieces.values():
            assert all(value.device.type == "cpu" for value in piece.tensors.values())
    assert set(pieces) == set(FITS)
    for name, piece in pieces.items():
        same(piece, expected[name])
    assert "_fused_adamw_" in pretended.operations


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("closed_form", {"mm", "amin", "argmax"}),  # patches; eigenvectors and K-means stay on the CPU
        ("flow", {"_fused_adamw_", "logsumexp"}),
        ("heads", {"_embedding_bag_forward_only", "topk"}),
        ("calibrated", {"topk", "amin"}),
    ],
)
def test_each_piece_computes_on_the_device(fit, data, parameters, name, operations):
    earlier = {piece: artefact for piece, artefact in fit(CPU).items() if piece != name}
    with PretendedCuda() as pretended:
        FITS[name].fit(data, earlier, parameters(), 0, Context(CUDA))
    assert pretended.operations >= operations


@BOTH_STARTS
def test_scoring_stays_on_the_device(fit, data, start):
    pieces = fit(CPU, start)
    expected = load(pieces, CPU).score_samples(data.anomalies)
    with PretendedCuda() as pretended:
        scores = load(pieces, CUDA).score_samples(data.anomalies)
    assert {"amin", "bmm"} <= pretended.operations
    for name in ("score", "parts", "mode"):
        np.testing.assert_array_equal(getattr(scores, name), getattr(expected, name))


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_a_batch_is_copied_to_cuda_from_pinned_memory(problem, schedule, device):
    with PretendedCuda() as pretended:
        batch = draw_batch(problem.training, schedule, torch.Generator(), device)
    tensors = [batch.z, *batch.start, *batch.path, batch.label]
    assert {place(tensor) for tensor in tensors} == {device.type}
    assert pretended.pinned == (len(tensors) - 1 if device == CUDA else 0)


def test_the_precision_is_stored_with_what_was_trained_in_it(fit):
    pieces = fit(CPU, precision="bf16")
    assert pieces["flow"].details["precision"] == load(pieces, CPU).flow.velocity.precision == "bf16"


def test_an_interrupted_training_resumes_on_the_device(fit):
    with PretendedCuda():
        checkpoint = Memory()
        whole = fit(CUDA, checkpoint=checkpoint, epochs=2)
        assert len(checkpoint.states) == 2
        same(fit(CUDA, checkpoint=Memory(checkpoint.states[:1]), epochs=2)["flow"], whole["flow"])


@pytest.mark.parametrize("transport_steps", [1, 2])
@pytest.mark.parametrize("coupling", ["repaired", "printed"])
def test_other_forms_train_on_the_device(fit, coupling, transport_steps):
    with PretendedCuda():
        found = fit(CUDA, coupling=coupling, transport_steps=transport_steps)["flow"]
    same(found, fit(CPU, coupling=coupling, transport_steps=transport_steps)["flow"])


@pytest.mark.parametrize("printed_start", [False, True])
def test_normals_are_sampled_on_the_device(make_problem, printed_start):
    flow, drawn = make_problem(printed_start=printed_start).flow, []
    for device in (CPU, CUDA):
        with PretendedCuda(), torch.inference_mode():
            flow.to(device)
            generator = torch.Generator().manual_seed(0)
            sample = sample_normals(flow.velocity, flow.prototypes, 5, 2, 1.0, generator)
            assert sample.device.type == device.type
            assert flow.modes.sample(5, generator).device.type == device.type
            drawn.append(sample.cpu().numpy())
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("left", ["modes", "patches"])
def test_a_part_of_the_closed_form_left_on_the_cpu_raises(problem, left):
    final = problem.closed_forms.final
    with PretendedCuda():
        final.to(CUDA)
        getattr(final, left).to(CPU)
        with pytest.raises(RuntimeError, match="same device"):
            final.score(problem.unseen_normals)


@pytest.mark.parametrize("left", ["velocity", "prototypes", "modes", "global_score"])
def test_a_part_of_the_flow_left_on_the_cpu_raises(problem, schedule, options, left):
    with PretendedCuda():
        problem.flow.to(CUDA)
        getattr(problem.flow, left).to(CPU)
        with pytest.raises(RuntimeError, match="same device"):
            train(problem.flow, problem.training, schedule, options, 0)
            problem.flow.score(problem.training.normals.z)


def test_the_random_state_of_the_device_is_left_alone(fit, monkeypatch):
    """Seeding by ``torch.manual_seed`` reseeds every GPU too, and nothing sets them back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    fit(CPU)
    assert seeded == []
