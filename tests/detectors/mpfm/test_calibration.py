import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.base import Context, TrainingData
from mpfm_kedro.detectors.mpfm import calibration, closed_form, learned
from mpfm_kedro.detectors.mpfm.calibration import (
    ANOMALIES_OF_THE_PRIOR,
    LENGTH,
    MIN_NORMALS_OF_A_MODE,
    PRIOR,
    SIGNS,
    Calibration,
    Evidence,
    calibrate,
    counted_in_mode,
    gather_evidence,
    plain_sum,
    stacked_weights,
    standardisation,
    unpack_calibrations,
    unsupervised_evidence,
    with_flow,
)

SEEDS = st.integers(0, 1000)
CLOSED_FORM = {
    "max_modes": 2,
    "min_mode_size": 15,
    "n_prototypes": 10,
    "top_share": 0.1,
    "unseen_normals": 200,
    "backbone": 0,
}
HEADS = {
    "head_steps": 30,
    "head_members": 2,
    "head_top_shares": [0.1, 0.05],
    "normals_per_batch": 8,
    "anomalies_per_batch": 4,
    "normality_target": "repaired",
    "backbone": 0,
}
CALIBRATED = {"fusion": "repaired", "scores": list("garn"), "n_backbones": 1}


def scores(sizes, seed=0, shift=0.0):
    """Evidence of scores that differ in level and spread from mode to mode."""
    rng = np.random.default_rng(seed)
    mode = np.repeat(np.arange(len(sizes)), sizes)
    level = np.array([1.0, -20.0, 300.0, 0.01])
    parts = level * (1 + mode[:, None] + (1 + mode[:, None]) * rng.normal(size=(len(mode), 4)) + shift)
    return Evidence(parts, mode, np.ones(len(mode)))


def none_of(evidence):
    return Evidence(evidence.parts[:0], evidence.mode[:0], evidence.count[:0])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(MIN_NORMALS_OF_A_MODE, 40), min_size=1, max_size=4), SEEDS)
def test_unseen_normals_of_every_mode_have_mean_zero_and_spread_one(sizes, seed):
    normals = scores(sizes, seed)
    (found,) = calibrate([(normals, scores(sizes, seed + 1, 2.0))], [len(sizes)], 5)
    standardised = np.sinh(found.standardise(normals.parts, normals.mode))
    for j in range(len(sizes)):
        np.testing.assert_allclose(standardised[normals.mode == j].mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(standardised[normals.mode == j].std(0), 1, atol=1e-6)


def test_compression_keeps_order_and_ordinary_scores():
    flat = Calibration(np.zeros((4, 1)), np.ones((4, 1)), np.ones((4, 1)))
    x = np.linspace(-50, 50, 101)
    found = flat.standardise(np.repeat(x[:, None], 4, axis=1), np.zeros(101, dtype=int))[:, 0]
    assert (np.diff(found) > 0).all()
    assert found[51] == pytest.approx(1, abs=0.2)
    assert found[-1] < 5


def test_modes_with_few_normals_fall_back_on_all():
    normals = scores([30, MIN_NORMALS_OF_A_MODE - 1, 0])
    found = standardisation(normals, 3)
    for j in (1, 2):
        np.testing.assert_allclose(found.center[:, j], normals.parts.mean(0))
        np.testing.assert_allclose(found.spread[:, j], normals.parts.std(0))
    np.testing.assert_allclose(found.center[:, 0], normals.parts[normals.mode == 0].mean(0))


def test_a_mode_is_judged_by_its_normals_and_not_by_how_often_they_are_scored():
    normals = scores([30, 4])
    repeated = Evidence(np.tile(normals.parts, (3, 1)), np.tile(normals.mode, 3), np.full(3 * 34, 1 / 3))
    np.testing.assert_allclose(standardisation(repeated, 2).center, standardisation(normals, 2).center)


@pytest.mark.parametrize("n_known", [0, 1])
def test_without_evidence_the_prior_rules(n_known):
    normals = scores([20])
    (found,) = calibrate([(normals, none_of(normals))], [1], n_known)
    np.testing.assert_allclose(found.weight[:, 0], prior_of(n_known))


def prior_of(n_known):
    """The weights without evidence."""
    share = n_known / (n_known + ANOMALIES_OF_THE_PRIOR)
    weight = PRIOR * [1, share, 1, share]
    return LENGTH * weight / np.linalg.norm(weight)


@pytest.mark.parametrize("sizes", [[10], [10, 0], [7, 3], [9.5, 0.5], [4, 0, 6]])
def test_known_anomalies_of_other_modes_count_together_as_one(sizes):
    mode = np.repeat(np.arange(len(sizes)), 4)  # four views of each, or of its half
    anomalies = Evidence(np.zeros((len(mode), 4)), mode, np.repeat(sizes, 4) / 4)
    for j, own in enumerate(sizes):
        count, known = counted_in_mode(anomalies, j, int(sum(sizes)))
        others = sum(sizes) - own
        np.testing.assert_allclose(count[mode == j].sum(), own)
        np.testing.assert_allclose(count[mode != j].sum(), min(1, others))
        assert known == pytest.approx(own + min(1, others))


def test_a_single_known_anomaly_counts_as_one_in_every_mode():
    none = none_of(scores([20, 20]))
    assert [counted_in_mode(none, j, 1)[1] for j in range(2)] == [1, 1]


@settings(deadline=None, max_examples=25)
@given(SEEDS)
def test_what_is_known_of_one_mode_raises_a_weight_there_more_than_elsewhere(seed):
    normals, anomalies = scores([60, 60], seed), scores([20, 0], seed + 1)
    anomalies.parts[:, 1] += 4 * normals.parts[:60, 1].std()  # S_a alone knows them
    (found,) = calibrate([(normals, anomalies)], [2], 20)
    assert found.weight[1, 0] > found.weight[1, 1] + 0.1
    np.testing.assert_allclose(np.linalg.norm(found.weight, axis=0), LENGTH)
    flat = standardisation(normals, 2)
    x, y = (flat.standardise(each.parts, each.mode) * SIGNS for each in (normals, anomalies))
    elsewhere = stacked_weights(x, normals.count, y, np.full(20, 1 / 20), PRIOR * [1, 1 / 4, 1, 1 / 4])
    np.testing.assert_allclose(found.weight[:, 1], LENGTH * elsewhere / np.linalg.norm(elsewhere), rtol=1e-6)


def draw(seed, n=40, m=10, k=4, shift=1.5):
    rng = np.random.default_rng(seed)
    moved = shift * rng.random(k)
    return rng.normal(size=(n, k)), rng.random(n) + 0.1, rng.normal(size=(m, k)) + moved, rng.random(m) + 0.1


def penalised_loss(parameters, normals, normal_count, anomalies, anomaly_count, prior):
    """The objective as it is written."""
    weight, bias = parameters[:-1], parameters[-1]
    share = normal_count / normal_count.sum() * anomaly_count.sum()
    of_normals = share @ np.log1p(np.exp(normals @ weight + bias))
    of_anomalies = anomaly_count @ np.log1p(np.exp(-(anomalies @ weight + bias)))
    return of_normals + of_anomalies + 0.5 * np.square(weight - prior).sum()


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(1, 30), st.floats(-2, 3))
def test_weights_are_the_minimum_of_the_penalised_loss(seed, m, shift):
    evidence, prior = draw(seed, m=m, shift=shift), np.array([1.0, 0.5, 1.0, 0.0])
    weight = stacked_weights(*evidence, prior)
    assert (weight >= 0).all()
    biases = np.linspace(-12, 12, 4801)
    values = [penalised_loss(np.append(weight, bias), *evidence, prior) for bias in biases]
    best = np.append(weight, biases[np.argmin(values)])
    for i in range(4):
        step = 1e-3 * np.eye(5)[i]
        slope = (penalised_loss(best + step, *evidence, prior) - penalised_loss(best - step, *evidence, prior)) / 2e-3
        assert slope == pytest.approx(0, abs=0.05) if weight[i] > 1e-6 else slope > -0.05


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(2, 4))
def test_copies_that_share_one_count_change_nothing(seed, copies):
    normals, normal_count, anomalies, anomaly_count = draw(seed)
    repeated = (np.tile(anomalies, (copies, 1)), np.tile(anomaly_count / copies, copies))
    more = (np.tile(normals, (copies, 1)), np.tile(normal_count, copies))  # normals count as much as the anomalies
    expected = stacked_weights(normals, normal_count, anomalies, anomaly_count, np.ones(4))
    np.testing.assert_allclose(stacked_weights(*more, *repeated, np.ones(4)), expected, atol=1e-3)


@settings(deadline=None, max_examples=25)
@given(SEEDS)
def test_evidence_raises_the_weight_of_an_informative_score_above_that_of_noise(seed):
    rng = np.random.default_rng(seed)
    gaps = []
    for m in (2, 60):
        normals, anomalies = rng.normal(size=(300, 4)), rng.normal(size=(m, 4)) + np.array([0, 2.5, 0, 0])
        weight = stacked_weights(normals, np.ones(300), anomalies, np.ones(m), np.ones(4))
        gaps.append(weight[1] - weight[[0, 2, 3]].max())
    assert gaps[1] > max(0.5, gaps[0])


def test_a_score_that_is_wrong_about_known_anomalies_gets_no_weight():
    rng = np.random.default_rng(0)
    normals, anomalies = rng.normal(size=(100, 4)), rng.normal(size=(40, 4)) + np.array([2, -2, 2, 2])
    assert stacked_weights(normals, np.ones(100), anomalies, np.ones(40), np.ones(4))[1] == 0


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("value", [0.0, 0.1, -1e3])
def test_a_score_without_spread_makes_no_nan(part, value):
    normals, anomalies = scores([20, 20]), scores([15, 15], seed=1, shift=2.0)
    normals.parts[:, part] = anomalies.parts[:, part] = value
    (found,) = calibrate([(normals, anomalies)], [2], 30)
    assert np.isfinite(found.fuse(anomalies.parts, anomalies.mode)).all()


def test_one_unseen_normal_is_enough_to_go_on():
    normals = scores([1])
    (found,) = calibrate([(normals, scores([3], seed=1))], [1], 3)
    assert np.isfinite(found.fuse(normals.parts, normals.mode)).all()


def test_fused_score_is_the_weighted_sum_with_normality_subtracted():
    found = Calibration(np.full((4, 1), 1.0), np.full((4, 1), 2.0), np.array([[1.0], [0.2], [0.1], [0.05]]))
    parts = np.array([[3.0, 2.0, 1.0, 5.0]])
    g, a, r, n = np.arcsinh((parts[0] - 1) / 2)
    assert found.fuse(parts, np.array([0])).item() == pytest.approx(g + 0.2 * a + 0.1 * r - 0.05 * n)


def test_printed_sum_is_of_the_raw_scores():
    normals = scores([4, 5])
    g, a, r, n = normals.parts.T
    np.testing.assert_allclose(plain_sum(2).fuse(normals.parts, normals.mode), g + a + r - n)


def test_backbones_are_weighed_together():
    normals, anomalies = scores([60]), scores([20], seed=1)
    useful = Evidence(anomalies.parts + 4 * normals.parts.std(0) * [1, 1, 1, -1], anomalies.mode, anomalies.count)
    found = calibrate([(normals, anomalies), (scores([60], seed=2), useful)], [1, 1], 20)
    assert found[1].weight.sum() > found[0].weight.sum() + 0.5
    assert np.linalg.norm([each.weight for each in found]) == pytest.approx(LENGTH)
    prior = calibrate([(normals, none_of(normals))] * 2, [1, 1], 0)
    np.testing.assert_allclose([each.weight[:, 0] for each in prior], np.tile(prior_of(0) / 2**0.5, (2, 1)))


def test_each_backbone_is_weighed_by_its_own_modes():
    one, two = scores([60]), scores([30, 30], seed=2)
    of_one, of_two = scores([20], seed=1), scores([20, 0], seed=3)  # all in the second backbone's first mode
    first, second = calibrate([(one, of_one), (two, of_two)], [1, 2], 20)
    assert (first.weight.shape, second.weight.shape) == ((4, 1), (4, 2))
    assert np.linalg.norm([first.weight[:, 0], second.weight[:, 0]]) == pytest.approx(LENGTH)  # the same evidence
    prior = calibrate([(one, none_of(of_one)), (two, none_of(of_two))], [1, 2], 1)[1].weight
    of_prior = [np.abs(second.weight[:, j] - prior[:, j]).max() for j in range(2)]
    assert of_prior[1] < of_prior[0]


@pytest.fixture(scope="module")
def make_pieces(make_rows):
    """Training data with its closed form and heads."""

    def make(n=60, n_known=3, views=2, seed=0):
        rng = np.random.default_rng(seed)
        normals = make_rows(rng.normal(size=(n, 8)) + 5 * (np.arange(n) % 2)[:, None], seed=1)
        source = np.tile(np.arange(n_known), views)
        known = make_rows(np.tile(rng.normal(size=(n_known, 8)) + 2, (views, 1)), spot=6.0, seed=2, source=source)
        data = TrainingData(normals, normals.take(np.arange(0)), known)
        pieces = {"closed_form": closed_form.fit(data, {}, CLOSED_FORM, seed, Context())}
        if n_known:
            pieces["heads"] = learned.fit(data, pieces, HEADS, seed, Context())
        return data, pieces

    return make


@pytest.mark.parametrize(("n_known", "views"), [(2, 1), (3, 2), (7, 3)])
def test_every_image_of_the_evidence_is_scored_by_models_without_it(make_pieces, n_known, views):
    data, pieces = make_pieces(n_known=n_known, views=views)
    closed_forms = closed_form.unpack(pieces["closed_form"])
    normals, anomalies = gather_evidence(data, closed_forms, pieces["heads"], Context())
    assert normals.count.sum() == pytest.approx(len(data.normals))
    assert anomalies.count.sum() == pytest.approx(n_known)
    assert len(anomalies.parts) == n_known * views
    heads = learned.unpack_heads(pieces["heads"], closed_forms.final.standardiser)
    rounds = [pieces["heads"].tensors[f"learns.{name}"].numpy() for name in ("normals", "anomalies")]
    for group, rows, found in zip(rounds, (data.normals, data.anomalies), (normals, anomalies), strict=True):
        learned_scores = heads.score(rows, torch.device("cpu"))
        expected = []
        for number, learns in enumerate(group[:-1]):
            closed = closed_forms.without[number % len(closed_forms.without)].score(rows)
            own = np.stack([closed.g, learned_scores[:, number, 0], closed.r, learned_scores[:, number, 1]], axis=1)
            expected.append(own[~learns])
        np.testing.assert_allclose(found.parts, np.concatenate(expected), rtol=1e-3, atol=1e-4)


def test_a_single_known_anomaly_is_no_evidence(make_pieces):
    data, pieces = make_pieces(n_known=1)
    normals, anomalies = gather_evidence(data, closed_form.unpack(pieces["closed_form"]), pieces["heads"], Context())
    assert len(anomalies.parts) == 0
    (found,) = unpack_calibrations(calibration.fit(data, pieces, CALIBRATED, 0, Context()))
    np.testing.assert_allclose(found.weight, np.repeat(prior_of(1)[:, None], found.weight.shape[1], axis=1))
    assert normals.count.sum() == pytest.approx(60)


def test_without_heads_the_closed_form_counts_alone(make_pieces):
    data, pieces = make_pieces(n_known=0)
    (found,) = unpack_calibrations(calibration.fit(data, pieces, CALIBRATED, 0, Context()))
    np.testing.assert_allclose(found.weight, np.repeat(prior_of(0)[:, None], found.weight.shape[1], axis=1))
    normals, anomalies = unsupervised_evidence(closed_form.unpack(pieces["closed_form"]))
    assert len(normals.parts) == 60 and len(anomalies.parts) == 0


@pytest.mark.parametrize("kept", ["g", "ar", "gan"])
@pytest.mark.parametrize("fusion", ["repaired", "printed"])
def test_scores_that_are_left_out_get_no_weight(make_pieces, kept, fusion):
    data, pieces = make_pieces()
    (part,) = unpack_calibrations(
        calibration.fit(data, pieces, CALIBRATED | {"scores": list(kept), "fusion": fusion}, 0, Context())
    )
    left_out = np.array([name not in kept for name in "garn"])
    assert (part.weight[left_out] == 0).all()
    np.testing.assert_allclose(np.linalg.norm(part.weight, axis=0), len(kept) ** 0.5 if fusion == "printed" else LENGTH)
    assert part.compressed == (fusion == "repaired")


def test_scores_that_are_left_out_decide_nothing():
    normals, anomalies = scores([60]), scores([20], seed=1, shift=1.0)
    counted = np.array([True, True, False, False])
    found = []
    for shift in (0.0, 5.0):
        changed = anomalies.parts + np.array([0, 0, 300.0, 0.01]) * shift
        other = Evidence(changed, anomalies.mode, anomalies.count)
        found.append(calibrate([(normals, other)], [1], 20, counted)[0].weight)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("counted", [[True, False, False, False], [True] * 4])
def test_evidence_against_every_score_leaves_the_prior(counted):
    normals = scores([60])
    wrong = Evidence(normals.parts[:20] - 20 * SIGNS * normals.parts.std(0), np.zeros(20, int), np.ones(20))
    (found,) = calibrate([(normals, wrong)], [1], 20, np.array(counted))
    expected = prior_of(20) * counted
    np.testing.assert_allclose(found.weight[:, 0], LENGTH * expected / np.linalg.norm(expected))


def test_a_trained_global_score_is_standardised_on_its_own_values(make_pieces):
    data, pieces = make_pieces()
    closed_forms = closed_form.unpack(pieces["closed_form"])
    before = unpack_calibrations(calibration.fit(data, pieces, CALIBRATED, 0, Context()))[0]
    g = np.random.default_rng(0).normal(size=60) * 7 + 100 * closed_forms.labels
    after = with_flow(before, g, closed_forms)
    parts = np.zeros((60, 4))
    parts[:, 0] = g
    standardised = np.sinh(after.standardise(parts, closed_forms.labels)[:, 0])
    for j in range(2):
        own = standardised[closed_forms.labels == j]
        np.testing.assert_allclose([own.mean(), own.std()], [0, 1], atol=1e-6)
    np.testing.assert_array_equal(after.center[1:], before.center[1:])
    np.testing.assert_array_equal(after.weight, before.weight)


@pytest.mark.parametrize("fusion", ["repaired", "printed"])
def test_calibrations_survive_storage(fusion):
    normals, anomalies = scores([30, 30]), scores([10, 10], seed=1, shift=1.0)
    found = calibrate([(normals, anomalies)] * 2, [2, 2], 20) if fusion == "repaired" else [plain_sum(2)] * 2
    again = unpack_calibrations(calibration.pack(found))
    for one, other in zip(found, again, strict=True):
        expected = one.fuse(anomalies.parts, anomalies.mode)
        np.testing.assert_array_equal(other.fuse(anomalies.parts, anomalies.mode), expected)
