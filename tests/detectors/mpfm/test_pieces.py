"""The pieces of MPFM: fitted one by one, stored, assembled again."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.calibration import unpack_calibrations
from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.closed_form import unpack
from mpfm_kedro.detectors.mpfm.detector import load as load_detector
from mpfm_kedro.detectors.mpfm.detector import load_left_out
from mpfm_kedro.detectors.mpfm.flow_training import unseen_start
from mpfm_kedro.detectors.mpfm.specification import specify_mpfm
from mpfm_kedro.detectors.mpfm.trainer import train
from mpfm_kedro.parameters import PrototypeParameters, RepairParameters, TrainingParameters

CPU = torch.device("cpu")
PROTOTYPES = PrototypeParameters(
    n_prototypes=20, n_image_prototypes=6, max_modes=4, min_mode_size=20, unseen_normals=200
)
REPAIRS = RepairParameters(**dict.fromkeys(RepairParameters.model_fields, "repaired"))
TRAINING = TrainingParameters(
    head_steps=60,
    head_members=2,
    head_top_shares=[0.1, 0.05],
    epochs=0,
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
    transport_steps=1,
    hidden=8,
    precision="fp32",
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


def specify(trained=True, epochs=0, n_backbones=1, scores="garn", **repairs):
    training = TRAINING.model_copy(update={"epochs": epochs, "scores": list(scores)})
    return specify_mpfm("MPFM", PROTOTYPES, REPAIRS.model_copy(update=repairs), training, trained, n_backbones)


def fit(specification, data, seed=0, checkpoint=None):
    """All pieces, each from what is stored of the earlier ones, and each with the anomalies that it may see."""
    unsupervised = replace(data, anomalies=data.anomalies.take(np.arange(0)))
    pieces = {}
    for piece in specification.pieces:
        module, _, name = piece.fit.partition(":")
        context = Context(CPU, checkpoint=checkpoint if piece.name == "flow" else None)
        own = data if piece.supervised else unsupervised
        found = getattr(import_module(module), name)(own, dict(pieces), piece.parameters, seed, context)
        pieces[piece.name] = through_bytes(found)
    return pieces


@pytest.fixture(scope="module")
def make_data(make_rows):
    """Training data of two modes, and new normals and anomalies."""

    def make(n=100, n_known=5, views=2, d=10):
        rng = np.random.default_rng(0)

        def normals(size):
            return rng.normal(size=(size, d)) * np.geomspace(1, 0.2, d) + 4 * (np.arange(size) % 2)[:, None]

        pooled, known = normals(n), normals(n_known) + 1
        data = TrainingData(
            make_rows(pooled, seed=1),
            make_rows(pooled + 0.6 * rng.normal(size=(n, d)), spot=2.0, seed=2),
            make_rows(np.tile(known, (views, 1)), spot=6.0, seed=3, source=np.tile(np.arange(n_known), views)),
        )
        return data, make_rows(normals(40), seed=6), make_rows(normals(40) + 1, spot=6.0, seed=7)

    return make


def auc(detector, normals, anomalies):
    scores = np.concatenate([detector.score_samples(rows).score for rows in (normals, anomalies)])
    assert np.isfinite(scores).all()
    return roc_auc_score(np.repeat([0, 1], [len(normals), len(anomalies)]), scores)


@pytest.mark.parametrize("n_known", [0, 1, 2, 3, 5])
def test_fitted_pieces_make_a_detector(make_data, n_known):
    data, normals, anomalies = make_data(n_known=n_known)
    pieces = fit(specify(trained=n_known > 0), data)
    assert set(pieces) == {"closed_form", "calibrated"} | ({"heads"} if n_known else set())
    detector = load_detector(pieces, CPU)
    assert auc(detector, normals, anomalies) > 0.9
    scores = detector.score_samples(anomalies)
    assert scores.score.shape == scores.mode.shape == (40,) and scores.parts.shape == (40, 4)
    assert set(scores.mode) == {0, 1}
    assert (scores.parts[:, [1, 3]] == 0).all() == (n_known == 0)
    again = load_detector({name: through_bytes(piece) for name, piece in pieces.items()}, CPU).score_samples(anomalies)
    np.testing.assert_array_equal(scores.score, again.score)


def test_no_known_anomaly_leaves_the_closed_form(make_data):
    data, normals, _ = make_data(n_known=0)
    heads_of_nothing, without = (load_detector(fit(specify(trained), data), CPU) for trained in (True, False))
    np.testing.assert_allclose(heads_of_nothing.score_samples(normals).score, without.score_samples(normals).score)


def test_positions_of_a_defect_have_the_highest_scores(make_data):
    data, normals, anomalies = make_data()
    detector = load_detector(fit(specify(), data), CPU)
    found = detector.position_scores(anomalies)
    assert found.shape == (40, 4, 4)
    highest = np.array([np.unravel_index(own.argmax(), own.shape) for own in found])
    assert (np.abs(highest - [1, 2]).max(1) <= 1).mean() > 0.9  # patches are averaged with their neighbours
    assert found[:, 1, 2].mean() > detector.position_scores(normals)[:, 1, 2].mean() + 1


def test_scores_of_a_uniform_image_are_those_of_its_positions(make_data):
    data, normals, _ = make_data()
    detector = load_detector(fit(specify(scores="ar"), data), CPU)
    flat = replace(normals, maps=np.broadcast_to(normals.maps.mean((2, 3), keepdims=True), normals.maps.shape))
    detector.closed_form.patches.scale.fill_(1.0)
    positions, scores = detector.position_scores(flat), detector.score_samples(flat).score
    np.testing.assert_allclose(positions, np.broadcast_to(scores[:, None, None], positions.shape), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("n", "n_known"), [(100, 1), (100, 3), (1000, 5), (100, 0)])
def test_left_out_detectors_have_not_seen_what_they_leave_out(make_data, n, n_known):
    data, _, _ = make_data(n=n, n_known=n_known)
    pieces = fit(specify(), data)
    left_out = load_left_out(pieces, CPU)
    closed_forms = unpack(pieces["closed_form"])
    normals = np.concatenate([each.normals for each in left_out])
    unseen = np.flatnonzero(closed_forms.fold < len(closed_forms.without))
    np.testing.assert_array_equal(np.sort(normals), unseen)  # each once
    anomalies = np.concatenate([each.anomalies for each in left_out])
    np.testing.assert_array_equal(np.sort(anomalies), np.arange(len(data.anomalies) if n_known > 1 else 0))
    learns = pieces["heads"].part("learns")
    for number, each in enumerate(left_out):
        assert not learns["normals"].numpy()[number, each.normals].any()
        assert not learns["anomalies"].numpy()[number, each.anomalies].any()
        (own,) = {int(fold) for fold in closed_forms.fold[each.normals]}
        expected = closed_forms.without[own].score(data.normals.take(each.normals))
        found = each.detector.score_samples(data.normals.take(each.normals))
        np.testing.assert_array_equal(found.parts[:, 0], expected.g)


def test_maps_of_several_backbones_are_added(make_data):
    data, normals, _ = make_data()
    double = TrainingData(*(replace(rows, beside=(rows,)) for rows in (data.normals, data.pseudo, data.anomalies)))
    both = load_detector(fit(specify(n_backbones=2), double), CPU)
    found = both.position_scores(replace(normals, beside=(normals,)))
    np.testing.assert_allclose(found, sum(each.position_scores(normals) for each in both.detectors), rtol=1e-6)


@pytest.mark.parametrize("n", range(2, 11))
@pytest.mark.parametrize("n_known", [0, 1, 3])
def test_few_normals_make_a_detector(make_data, n, n_known):
    data, normals, anomalies = make_data(n=n, n_known=n_known)
    assert auc(load_detector(fit(specify(trained=n_known > 0), data), CPU), normals, anomalies) > 0.5


@pytest.mark.parametrize("repair", RepairParameters.model_fields)
@pytest.mark.parametrize("n_known", [1, 3])
def test_every_printed_form_makes_a_detector(make_data, repair, n_known):
    data, normals, anomalies = make_data(n_known=n_known)
    detector = load_detector(fit(specify(epochs=1, **{repair: "printed"}), data), CPU)
    assert 0 <= auc(detector, normals, anomalies) <= 1


def test_printed_fusion_is_the_plain_sum(make_data):
    data, _, anomalies = make_data()
    scores = load_detector(fit(specify(fusion="printed"), data), CPU).score_samples(anomalies)
    g, a, r, n = scores.parts.T
    np.testing.assert_allclose(scores.score, g + a + r - n)


@pytest.mark.parametrize("n", [4, 100])
@pytest.mark.parametrize("transport_start", ["repaired", "printed"])
def test_a_trained_flow_gives_the_global_score(make_data, transport_start, n):
    data, normals, anomalies = make_data(n=n)
    pieces = fit(specify(epochs=2, transport_start=transport_start), data)
    assert set(pieces) == {"closed_form", "flow", "heads", "calibrated"}
    detector = load_detector(pieces, CPU)
    assert auc(detector, normals, anomalies) > 0.7
    z = detector.closed_form.standardiser.z(anomalies)
    scores = detector.score_samples(anomalies)
    np.testing.assert_allclose(scores.parts[:, 0], detector.flow.score(z))
    without = load_detector({name: piece for name, piece in pieces.items() if name != "flow"}, CPU)
    np.testing.assert_array_equal(scores.parts[:, 1:], without.score_samples(anomalies).parts[:, 1:])


def test_training_normals_have_standardised_scores_of_a_trained_flow(make_data):
    data, _, _ = make_data()
    pieces = fit(specify(epochs=2), data)
    (calibration,) = unpack_calibrations(pieces["calibrated"])
    labels = pieces["closed_form"].tensors["labels"].numpy()
    g = pieces["flow"].tensors["normals"].numpy()
    standardised = (g - calibration.center[0, labels]) / calibration.spread[0, labels]
    for j in range(2):
        own = standardised[labels == j]
        np.testing.assert_allclose([own.mean(), own.std()], [0, 1], atol=1e-5)


def test_stored_scores_of_a_trained_flow_are_by_modes_without_the_normals(make_data):
    data, _, _ = make_data()
    pieces = fit(specify(epochs=1), data)
    detector = load_detector(pieces, CPU)
    found = pieces["flow"].tensors["normals"].numpy()
    start = unseen_start(unpack(pieces["closed_form"]), data.normals)
    z = detector.closed_form.standardiser.z(data.normals)
    np.testing.assert_allclose(found, detector.flow.score(z, start), rtol=1e-4, atol=1e-4)
    assert found.mean() > detector.flow.score(z).mean()


def test_a_trained_flow_holds_what_training_changes_and_nothing_of_the_modes(make_data):
    data, _, _ = make_data()
    pieces = fit(specify(epochs=1), data)
    stored = {name.removeprefix("flow.") for name in pieces["flow"].tensors if name.startswith("flow.")}
    flow = load_detector(pieces, CPU).flow
    assert stored >= {name for name, _ in flow.named_parameters()}
    assert not any("modes" in name for name in stored)
    assert flow.velocity.modes is flow.modes


def test_interrupted_training_gives_the_same_piece(make_data):
    data, _, _ = make_data()
    checkpoint = Memory()
    whole = fit(specify(epochs=2), data, checkpoint=checkpoint)
    assert len(checkpoint.states) == 2
    resumed = fit(specify(epochs=2), data, checkpoint=Memory(checkpoint.states[:1]))
    for piece, artefact in whole.items():
        assert artefact.details == resumed[piece].details
        for name, value in artefact.tensors.items():
            assert torch.equal(value, resumed[piece].tensors[name]), name


def test_a_checkpoint_holds_no_frozen_basis(make_data):
    checkpoint = Memory()
    fit(specify(epochs=1), make_data()[0], checkpoint=checkpoint)
    names = {name for name in checkpoint.states[0].tensors if name.startswith("model.")}
    assert names and not any("modes" in name or "patches" in name for name in names)


def test_a_training_state_survives_storage(make_problem, schedule, options):
    stored = []
    problem = make_problem()
    history = train(
        problem.flow, problem.training, schedule, options, 3, checkpoint=lambda s: stored.append(save_state(s))
    )
    state = load_state(through_bytes(stored[0]))
    assert state.epoch == 1
    assert state.history == history[:1]
    resumed = make_problem()
    assert train(resumed.flow, resumed.training, schedule, options, 3, state) == history
    for name, value in problem.flow.state_dict().items():
        assert torch.equal(value, resumed.flow.state_dict()[name]), name


@pytest.mark.parametrize("n_known", [0, 1, 3])
def test_backbones_side_by_side_add_their_scores(make_data, n_known):
    (data, normals, anomalies), (other, other_normals, other_anomalies) = (
        make_data(n_known=n_known),
        make_data(n_known=n_known, d=7),
    )
    joined = TrainingData(
        *(replace(getattr(data, name), beside=(getattr(other, name),)) for name in ("normals", "pseudo", "anomalies"))
    )
    pieces = fit(specify(trained=n_known > 0, n_backbones=2), joined)
    heads = {"heads", "heads_2"} if n_known else set()
    assert set(pieces) == {"closed_form", "closed_form_2", "calibrated"} | heads
    detector = load_detector(pieces, CPU)
    rows = replace(anomalies, beside=(other_anomalies,))
    assert auc(detector, replace(normals, beside=(other_normals,)), rows) > 0.9
    first, second = detector.detectors
    parts = first.score_samples(anomalies).score, second.score_samples(other_anomalies).score
    found = detector.score_samples(rows)
    np.testing.assert_allclose(found.score, parts[0] + parts[1])
    np.testing.assert_array_equal(found.parts, first.score_samples(anomalies).parts)
    alone = fit(specify(trained=n_known > 0), data)["closed_form"]
    assert all(torch.equal(value, pieces["closed_form"].tensors[name]) for name, value in alone.tensors.items())


def test_each_parameter_belongs_to_the_pieces_that_it_decides():
    def touched(group, **changes):
        training = TRAINING.model_copy(update={"epochs": 2})
        groups = {"prototypes": PROTOTYPES, "repairs": REPAIRS, "training": training}
        other = groups | {group: groups[group].model_copy(update=changes)}
        pairs = zip(specify_mpfm("a", **groups).pieces, specify_mpfm("a", **other).pieces, strict=True)
        return {one.name for one, changed in pairs if one.parameters != changed.parameters}

    assert touched("prototypes", n_prototypes=8) == {"closed_form"}
    assert touched("prototypes", max_modes=1) == {"closed_form"}
    assert touched("prototypes", n_image_prototypes=8) == {"flow"}
    assert touched("training", top_share=0.5) == {"closed_form"}
    assert touched("training", mim_weight=1.0) == {"flow"}
    assert touched("training", head_steps=7) == {"heads"}
    assert touched("training", head_members=7) == {"heads"}
    assert touched("training", head_top_shares=[0.7]) == {"heads"}
    assert touched("training", normals_per_batch=7) == {"flow", "heads"}
    assert touched("training", scores=["g"]) == {"calibrated"}
    assert touched("repairs", fusion="printed") == {"calibrated"}
    assert touched("repairs", normality_target="printed") == {"heads"}
    for repair in ("transport_start", "coupling", "mutual_information"):
        assert touched("repairs", **{repair: "printed"}) == {"flow"}


def test_pieces_that_learn_from_anomalies_say_so():
    supervised = {piece.name: piece.supervised for piece in specify(epochs=1).pieces}
    assert supervised == {"closed_form": False, "flow": True, "heads": True, "calibrated": True}
    assert not any(piece.supervised for piece in specify(trained=False).pieces)
    assert specify(epochs=1).budget == "4 steps of the flow and 60 steps of 18"
    assert specify().budget == "60 steps of 18"
    assert specify(trained=False).budget == "closed form"
