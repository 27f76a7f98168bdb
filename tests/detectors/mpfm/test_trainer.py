import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.heads import LocalEvidence
from mpfm_kedro.detectors.mpfm.modes import Path, Start
from mpfm_kedro.detectors.mpfm.objective import KNOWN, NORMAL, PSEUDO
from mpfm_kedro.detectors.mpfm.trainer import draw_batch, monitor, train

CPU = torch.device("cpu")


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def differing(first, second):
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


def test_same_seed_gives_identical_weights(make_problem, schedule, options):
    found = []
    for _ in range(2):
        problem = make_problem()
        history = train(problem.model, problem.training, schedule, options, seed=5)
        found.append((weights(problem.model), history))
    assert differing(found[0][0], found[1][0]) == []
    assert found[0][1] == found[1][1]


def test_another_seed_gives_other_weights(make_problem, schedule, options):
    found = []
    for seed in (5, 6):
        problem = make_problem()
        train(problem.model, problem.training, schedule, options, seed)
        found.append(weights(problem.model))
    assert "velocity.mean.weight" in differing(*found)


@pytest.mark.parametrize("stop", [1, 2])
def test_resumed_training_is_bit_identical_to_an_undisturbed_one(make_problem, schedule, options, stop):
    undisturbed = make_problem()
    expected = train(undisturbed.model, undisturbed.training, schedule, options, seed=5)
    kept = {}

    def keep(state):
        kept[state.epoch] = save_state(state)

    interrupted = make_problem()
    first = dataclasses.replace(schedule, epochs=stop)
    train(interrupted.model, interrupted.training, first, options, 5, checkpoint=keep)
    assert list(kept) == list(range(1, stop + 1))
    resumed = make_problem()
    history = train(resumed.model, resumed.training, schedule, options, 5, load_state(kept[stop]))
    assert differing(weights(undisturbed.model), weights(resumed.model)) == []
    assert history == expected


def test_a_kept_state_does_not_change_as_training_goes_on(problem, schedule, options):
    kept = []
    train(problem.model, problem.training, schedule, options, 5, checkpoint=lambda s: kept.append(save_state(s)))
    assert "model.velocity.mean.weight" in differing(kept[0].tensors, kept[-1].tensors)


def test_a_finished_training_is_only_loaded(make_problem, schedule, options):
    kept = []
    problem = make_problem()
    history = train(
        problem.model, problem.training, schedule, options, 5, checkpoint=lambda s: kept.append(save_state(s))
    )
    again = make_problem()
    assert train(again.model, again.training, schedule, options, 5, load_state(kept[-1])) == history
    assert differing(weights(problem.model), weights(again.model)) == []


def test_no_epochs_leave_the_model_as_it_is(problem, schedule, options):
    before = weights(problem.model)
    assert train(problem.model, problem.training, dataclasses.replace(schedule, epochs=0), options, 0) == []
    assert differing(before, weights(problem.model)) == []


def test_history_has_a_row_an_epoch_with_every_term(problem, schedule, options):
    history = train(problem.model, problem.training, schedule, options, seed=0)
    assert [row["epoch"] for row in history] == [1, 2, 3]
    expected = {"flow_normal", "flow_anomaly", "mim", "score_g", "score_a", "score_r", "score_n", "penalty", "total"}
    for row in history:
        assert set(row) >= expected | {"information_share", "assignment_entropy", "used_prototypes", "mim_gradient"}
        assert np.isfinite(list(row.values())).all()
        assert 0 <= row["information_share"] <= 1
        assert 1 <= row["used_prototypes"] <= len(problem.model.prototypes.mean)
        assert row["mim_gradient"] > 0


def test_monitoring_leaves_no_gradients(problem, options):
    problem.model.zero_grad(set_to_none=True)
    monitor(problem.model, problem.training.normals, options, CPU)
    assert all(parameter.grad is None for parameter in problem.model.parameters())


def test_training_moves_flow_prototypes_and_heads_but_neither_modes_nor_scale(problem, schedule, options):
    before = weights(problem.model)
    train(problem.model, problem.training, schedule, options, seed=0)
    changed = set(differing(before, weights(problem.model)))
    trained = {name for name, _ in problem.model.named_parameters()}
    assert changed <= trained
    assert trained - changed <= {"velocity.logit.weight", "velocity.logit.bias"}  # modes far apart leave these alone


def numbered(problem):
    """The training set with the position of each image in place of its first statistic."""
    pieces = {}
    for offset, name in enumerate(("normals", "pseudo", "anomalies")):
        moved = getattr(problem.training, name)
        pooled = moved.rows.pooled.copy()
        pooled[:, 0] = 1000 * offset + np.arange(len(pooled))
        end = torch.from_numpy(pooled[:, :1]).expand(-1, pooled.shape[1])
        rows = dataclasses.replace(moved.rows, pooled=pooled)
        pieces[name] = dataclasses.replace(
            moved,
            rows=rows,
            start=Start(end, end[:, :2]),
            path=Path(end, end, end),
            evidence=LocalEvidence(end[:, 0], end),
        )
    return dataclasses.replace(problem.training, **pieces)


def test_evidence_kept_with_the_initial_model_is_that_of_the_images(problem):
    model = problem.model
    for moved in (problem.training.normals, problem.training.pseudo):
        mode = model.modes.log_prob(model.z(torch.from_numpy(moved.rows.pooled))).argmax(1)
        expected = model.local_score.evidence(moved.rows.map_batch(), mode)
        torch.testing.assert_close(moved.evidence, expected)


def test_batches_hold_what_the_schedule_says_and_keep_images_together(problem, schedule):
    data, model = numbered(problem), problem.model
    seen = set()
    for seed in range(20):
        batch = draw_batch(model, data, schedule, torch.Generator().manual_seed(seed), CPU)
        assert batch.label.tolist() == [NORMAL] * 6 + [PSEUDO] * 6 + [KNOWN] * 6
        number = (batch.z * model.pooled_spread + model.pooled_center)[:, 0].round().long()
        torch.testing.assert_close(number.float(), batch.start.psi[:, 0])
        for found in (
            batch.start.log_prob[:, 1],
            batch.path.end[:, -1],
            batch.path.inside_end[:, 0],
            batch.evidence.energy,
            batch.evidence.patch[:, 2],
        ):
            torch.testing.assert_close(number.float(), found)
        for n, label in zip(number.tolist(), batch.label.tolist(), strict=True):
            kind, position = divmod(n, 1000)
            rows = (data.normals, data.pseudo, data.anomalies)[kind].rows
            assert position < len(rows)
            assert label == (NORMAL, PSEUDO, KNOWN)[kind]
            seen.add(n)
    assert {n // 1000 for n in seen} == {0, 1, 2}
    assert len([n for n in seen if n // 1000 == 2]) == len(data.anomalies.rows)


def test_printed_batches_keep_maps_with_their_images(make_problem, schedule):
    problem = make_problem(printed_start=True)
    data, model = problem.training, problem.model
    batch = draw_batch(model, data, schedule, torch.Generator().manual_seed(0), CPU)
    assert batch.evidence is None
    assert batch.start is None
    pooled = np.concatenate([piece.rows.pooled for piece in (data.normals, data.pseudo, data.anomalies)])
    maps = torch.cat([piece.rows.map_batch() for piece in (data.normals, data.pseudo, data.anomalies)])
    position = torch.cdist(batch.z, model.z(torch.from_numpy(pooled))).argmin(1)
    assert torch.equal(batch.maps, maps[position])


@pytest.mark.parametrize(("n_anomalies", "cutmix", "expected"), [(0, 2, 6), (5, 0, 6), (0, 0, 0)])
def test_training_works_without_known_or_pseudo_anomalies(
    make_problem, schedule, options, n_anomalies, cutmix, expected
):
    problem = make_problem(n_anomalies=n_anomalies, cutmix=cutmix)
    batch = draw_batch(problem.model, problem.training, schedule, torch.Generator(), CPU)
    assert int((batch.label != NORMAL).sum()) == expected
    history = train(problem.model, problem.training, schedule, options, seed=0)
    assert np.isfinite([value for row in history for value in row.values()]).all()


@pytest.mark.parametrize("coupling", ["repaired", "printed"])
def test_printed_start_trains_too(make_problem, schedule, options, coupling):
    problem = make_problem(printed_start=True, coupling=coupling)
    before = weights(problem.model)
    history = train(problem.model, problem.training, schedule, options, seed=0)
    assert np.isfinite([value for row in history for value in row.values()]).all()
    assert "velocity.mean.weight" in differing(before, weights(problem.model))


def test_a_batch_without_normals_is_never_drawn(problem, schedule):
    full = dataclasses.replace(schedule, pseudo_share=1.0)
    batch = draw_batch(problem.model, problem.training, full, torch.Generator(), CPU)
    assert (batch.label == 0).any()


def auc(problem, part):
    scores = []
    for rows in (problem.unseen_normals, problem.unseen_anomalies):
        parts, _ = problem.model.score(torch.from_numpy(rows.pooled), rows.map_batch())
        scores.append(getattr(parts, part).numpy())
    return roc_auc_score(np.repeat([0, 1], [len(s) for s in scores]), np.concatenate(scores))


def test_training_separates_anomalies_like_the_known_ones(make_problem, schedule, options):
    problem = make_problem(seed=1)
    before = {part: auc(problem, part) for part in "garn"}
    longer = dataclasses.replace(schedule, epochs=6, iterations_per_epoch=20, learning_rate=1e-2)
    history = train(problem.model, problem.training, longer, dataclasses.replace(options, head_penalty=0.01), seed=1)
    after = {part: auc(problem, part) for part in "garn"}
    assert history[-1]["total"] < history[0]["total"]
    assert before["r"] == before["n"] == 0.5
    assert after["g"] > before["g"]
    assert after["a"] > before["a"]
    assert after["r"] > 0.7
    assert after["n"] < 0.3
