import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.modes import Path, Start
from mpfm_kedro.detectors.mpfm.objective import KNOWN, NORMAL, PSEUDO
from mpfm_kedro.detectors.mpfm.trainer import draw_batch, monitor, train

CPU = torch.device("cpu")


def weights(flow):
    return {name: value.clone() for name, value in flow.state_dict().items()}


def differing(first, second):
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


def test_same_seed_gives_identical_weights(make_problem, schedule, options):
    found = []
    for _ in range(2):
        problem = make_problem()
        history = train(problem.flow, problem.training, schedule, options, seed=5)
        found.append((weights(problem.flow), history))
    assert differing(found[0][0], found[1][0]) == []
    assert found[0][1] == found[1][1]


def test_another_seed_gives_other_weights(make_problem, schedule, options):
    found = []
    for seed in (5, 6):
        problem = make_problem()
        train(problem.flow, problem.training, schedule, options, seed)
        found.append(weights(problem.flow))
    assert "velocity.mean.weight" in differing(*found)


@pytest.mark.parametrize("stop", [1, 2])
def test_resumed_training_is_bit_identical_to_an_undisturbed_one(make_problem, schedule, options, stop):
    undisturbed = make_problem()
    expected = train(undisturbed.flow, undisturbed.training, schedule, options, seed=5)
    kept = {}

    def keep(state):
        kept[state.epoch] = save_state(state)

    interrupted = make_problem()
    first = dataclasses.replace(schedule, epochs=stop)
    train(interrupted.flow, interrupted.training, first, options, 5, checkpoint=keep)
    assert list(kept) == list(range(1, stop + 1))
    resumed = make_problem()
    history = train(resumed.flow, resumed.training, schedule, options, 5, load_state(kept[stop]))
    assert differing(weights(undisturbed.flow), weights(resumed.flow)) == []
    assert history == expected


def test_a_kept_state_does_not_change_as_training_goes_on(problem, schedule, options):
    kept = []
    train(problem.flow, problem.training, schedule, options, 5, checkpoint=lambda s: kept.append(save_state(s)))
    assert "model.velocity.mean.weight" in differing(kept[0].tensors, kept[-1].tensors)


def test_a_finished_training_is_only_loaded(make_problem, schedule, options):
    kept = []
    problem = make_problem()
    history = train(
        problem.flow, problem.training, schedule, options, 5, checkpoint=lambda s: kept.append(save_state(s))
    )
    again = make_problem()
    assert train(again.flow, again.training, schedule, options, 5, load_state(kept[-1])) == history
    assert differing(weights(problem.flow), weights(again.flow)) == []


def test_no_epochs_leave_the_flow_as_it_is(problem, schedule, options):
    before = weights(problem.flow)
    assert train(problem.flow, problem.training, dataclasses.replace(schedule, epochs=0), options, 0) == []
    assert differing(before, weights(problem.flow)) == []


def test_history_has_a_row_an_epoch_with_every_term(problem, schedule, options):
    history = train(problem.flow, problem.training, schedule, options, seed=0)
    assert [row["epoch"] for row in history] == [1, 2, 3]
    expected = {"flow_normal", "flow_anomaly", "mim", "score_g", "total"}
    for row in history:
        assert set(row) >= expected | {"information_share", "assignment_entropy", "used_prototypes", "mim_gradient"}
        assert np.isfinite(list(row.values())).all()
        assert 0 <= row["information_share"] <= 1
        assert 1 <= row["used_prototypes"] <= len(problem.flow.prototypes.mean)
        assert row["mim_gradient"] > 0


def test_monitoring_leaves_no_gradients(problem, options):
    problem.flow.zero_grad(set_to_none=True)
    monitor(problem.flow, problem.training.normals, options, CPU)
    assert all(parameter.grad is None for parameter in problem.flow.parameters())


def test_training_moves_network_prototypes_and_score_but_neither_modes_nor_scale(problem, schedule, options):
    before = weights(problem.flow)
    train(problem.flow, problem.training, schedule, options, seed=0)
    changed = set(differing(before, weights(problem.flow)))
    trained = {name for name, _ in problem.flow.named_parameters()}
    assert changed <= trained
    assert trained - changed <= {"velocity.logit.weight", "velocity.logit.bias"}  # modes far apart leave these alone


def numbered(problem):
    """The training set with the position of each image in place of its features."""
    groups = {}
    for offset, name in enumerate(("normals", "pseudo", "anomalies")):
        rows = getattr(problem.training, name)
        z = np.repeat(1000 * offset + np.arange(len(rows.z), dtype=np.float32)[:, None], rows.z.shape[1], axis=1)
        end = torch.from_numpy(z)
        groups[name] = dataclasses.replace(rows, z=z, start=Start(end, end[:, :2]), path=Path(end, end, end))
    return dataclasses.replace(problem.training, **groups)


def test_batches_hold_what_the_schedule_says_and_keep_images_together(problem, schedule):
    data = numbered(problem)
    seen = set()
    for seed in range(20):
        batch = draw_batch(data, schedule, torch.Generator().manual_seed(seed), CPU)
        assert batch.label.tolist() == [NORMAL] * 6 + [PSEUDO] * 6 + [KNOWN] * 6
        number = batch.z[:, 0]
        for found in (batch.start.psi, batch.start.log_prob, batch.path.end, batch.path.inside_end):
            assert torch.equal(number, found[:, -1])
        for n, label in zip(number.int().tolist(), batch.label.tolist(), strict=True):
            kind, position = divmod(n, 1000)
            assert position < len((data.normals, data.pseudo, data.anomalies)[kind].z)
            assert label == (NORMAL, PSEUDO, KNOWN)[kind]
            seen.add(n)
    assert {n // 1000 for n in seen} == {0, 1, 2}
    assert len([n for n in seen if n // 1000 == 2]) == len(data.anomalies.z)


def test_printed_batches_have_no_start(make_problem, schedule):
    batch = draw_batch(make_problem(printed_start=True).training, schedule, torch.Generator(), CPU)
    assert batch.start is None
    assert batch.path is not None


@pytest.mark.parametrize("coupling", ["repaired", "printed"])
def test_more_than_one_step_computes_its_starts(make_problem, schedule, options, coupling):
    problem = make_problem(transport_steps=2, coupling=coupling)
    batch = draw_batch(problem.training, schedule, torch.Generator(), CPU)
    assert batch.start is None
    assert (batch.path is None) == (coupling == "printed")
    history = train(problem.flow, problem.training, schedule, options, seed=0)
    assert np.isfinite([value for row in history for value in row.values()]).all()


@pytest.mark.parametrize(("n_anomalies", "cutmix", "expected"), [(0, 2, 6), (5, 0, 6), (0, 0, 0)])
def test_training_works_without_known_or_pseudo_anomalies(
    make_problem, schedule, options, n_anomalies, cutmix, expected
):
    problem = make_problem(n_anomalies=n_anomalies, cutmix=cutmix)
    batch = draw_batch(problem.training, schedule, torch.Generator(), CPU)
    assert int((batch.label != NORMAL).sum()) == expected
    history = train(problem.flow, problem.training, schedule, options, seed=0)
    assert np.isfinite([value for row in history for value in row.values()]).all()


@pytest.mark.parametrize("coupling", ["repaired", "printed"])
def test_printed_start_trains_too(make_problem, schedule, options, coupling):
    problem = make_problem(printed_start=True, coupling=coupling)
    before = weights(problem.flow)
    history = train(problem.flow, problem.training, schedule, options, seed=0)
    assert np.isfinite([value for row in history for value in row.values()]).all()
    assert "velocity.mean.weight" in differing(before, weights(problem.flow))


def test_a_batch_without_normals_is_never_drawn(problem, schedule):
    full = dataclasses.replace(schedule, pseudo_share=1.0)
    batch = draw_batch(problem.training, full, torch.Generator(), CPU)
    assert (batch.label == 0).any()


def auc(problem):
    z = [problem.closed_forms.final.standardiser.z(rows) for rows in (problem.unseen_normals, problem.unseen_anomalies)]
    scores = np.concatenate([problem.flow.score(each) for each in z])
    return roc_auc_score(np.repeat([0, 1], [len(each) for each in z]), scores)


def test_training_separates_anomalies_like_the_known_ones(make_problem, schedule, options):
    problem = make_problem(seed=1)
    before = auc(problem)
    longer = dataclasses.replace(schedule, epochs=6, iterations_per_epoch=20, learning_rate=1e-2)
    history = train(problem.flow, problem.training, longer, options, seed=1)
    assert history[-1]["total"] < history[0]["total"]
    assert auc(problem) > before
