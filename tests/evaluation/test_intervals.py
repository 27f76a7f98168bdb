"""The bootstrap: exact where the answer is known, honest where it is not."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from evaluation.synthetic_trials import one, trial_costs, trial_scores
from mpfm_kedro.evaluation.intervals import (
    DIFFERENCES,
    paired_differences,
    recall_intervals,
    weighted_aucs,
    weighted_recalls,
)
from mpfm_kedro.evaluation.measures import measure_trials, recall_at, summarise


def few_scores(least, most):
    """Scores with ties."""
    return arrays(float, st.integers(least, most), elements=st.integers(-3, 3).map(float))


def draw_weights(normals, anomalies, seed):
    """Five draws for each sample."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 4, (len(scores), 5)).astype(np.float32) for scores in (normals, anomalies)]


def repeat(normals, anomalies, weights, draw):
    """Each score as often as its weight says."""
    return [np.repeat(s, w[:, draw].astype(int)) for s, w in zip((normals, anomalies), weights, strict=True)]


@given(few_scores(1, 12), few_scores(1, 12), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_weighted_auc_is_that_of_repeated_samples(normals, anomalies, seed):
    weights = draw_weights(normals, anomalies, seed)
    for values in weights:
        values[:, 0] = 1
        values[0] += 1  # none without a sample
    found = weighted_aucs(normals, anomalies, *weights)
    for draw in range(5):
        repeated = repeat(normals, anomalies, weights, draw)
        label = np.repeat([0, 1], [len(scores) for scores in repeated])
        assert found[draw] == pytest.approx(roc_auc_score(label, np.concatenate(repeated)))


@given(few_scores(5, 30), few_scores(1, 12), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_weighted_recall_is_that_of_repeated_samples(normals, anomalies, seed):
    weights = draw_weights(normals, anomalies, seed)
    for values in weights:
        values[:2, 1:] += 1  # none without a sample
        values[:, 0] = 1
    found = weighted_recalls(normals, anomalies, *weights, rate=0.2)
    for draw in range(5):
        repeated = repeat(normals, anomalies, weights, draw)
        allowed = int(0.2 * len(repeated[0]) + 1e-9)
        assert found[draw] == pytest.approx((repeated[1] > np.sort(repeated[0])[-1 - allowed]).mean())
    assert found[0] == recall_at(normals, anomalies, 0.2)


@pytest.mark.parametrize(("strength", "n_seeds"), [(2.0, 1), (2.0, 3), (9.0, 3)])
def test_interval_of_a_recall_contains_the_mean_and_is_never_empty(strength, n_seeds):
    scores = trial_scores({"MPFM": strength}, n_normals=120, n_seeds=n_seeds, numbers=(10,))
    table = summarise(measure_trials(scores), recall_intervals(scores, draws=200))
    for name in ("recall_1", "recall_5"):
        assert (table[f"{name}_low"] >= 0).all() and (table[f"{name}_high"] <= 1).all()
        assert (table[f"{name}_low"] <= table[f"{name}_mean"]).all()
        assert (table[f"{name}_mean"] <= table[f"{name}_high"]).all()
        assert (table[f"{name}_high"] - table[f"{name}_low"] > 0.1).all(), "also where all are found"


def test_recall_without_enough_normals_has_no_interval():
    scores = trial_scores({"MPFM": 1.0}, n_normals=40, n_seeds=2, numbers=(10,))
    table = recall_intervals(scores, draws=20)
    assert table["recall_1_low"].isna().all() and table["recall_5_low"].notna().all()


def test_recall_intervals_cover_the_recall_of_the_population():
    """Gaussian scores: at 5 % false alarms the recall is P(N(2, 1) > 1.645)."""
    true, covered = norm.sf(norm.ppf(0.95) - 2.0), 0
    for seed in range(100):
        scores = trial_scores(
            {"MPFM": 2.0}, ("a",), numbers=(10,), n_seeds=1, n_normals=200, n_anomalies=62, rng_seed=seed
        )
        (row,) = recall_intervals(scores, draws=100).to_dict("records")
        covered += row["recall_5_low"] <= true <= row["recall_5_high"]
    assert 88 <= covered <= 100


def test_a_draw_without_any_anomaly_has_no_auc():
    ones, none = np.ones((3, 1), dtype=np.float32), np.zeros((2, 1), dtype=np.float32)
    assert np.isnan(weighted_aucs(np.arange(3.0), np.arange(2.0), ones, none)[0])


def test_identical_methods_do_not_differ():
    scores = trial_scores({"MPFM": 1.0})
    both = pd.concat([scores, scores.assign(method="copy")], ignore_index=True)
    differences = paired_differences(both, draws=50)
    assert differences.columns.tolist() == DIFFERENCES
    assert (differences[["difference", "low", "high"]] == 0).all(axis=None)
    assert set(differences["verdict"]) == {"undecided"}
    assert len(differences) == 2 + 3 * 2


def test_better_and_worse_methods_are_distinguished():
    strength = {"MPFM": 1.5, "strong": 4.0, "weak": 0.0, "alike": 1.5}
    scores = trial_scores(strength, n_seeds=5, n_normals=80, n_anomalies=40)
    differences = paired_differences(scores, draws=300)
    verdicts = differences.groupby("method")["verdict"].agg(set)
    assert verdicts["strong"] == {"better"}
    assert verdicts["weak"] == {"worse"}
    assert "undecided" in verdicts["alike"]
    assert (differences["low"] <= differences["difference"]).all()
    assert (differences["difference"] <= differences["high"]).all()


def test_differences_are_those_of_the_summary():
    scores = trial_scores({"MPFM": 1.0, "A": 0.6}, categories=("nut", "tile"), n_seeds=2)
    summary = summarise(measure_trials(scores, trial_costs(scores)))
    keys = ["category", "setting", "known_class", "n_anomalies"]
    auc = summary.set_index(["method", *keys])["auc_mean"]
    differences = paired_differences(scores, draws=10).set_index(keys)
    assert len(differences) == len(summary) / 2
    for key, difference in differences["difference"].items():
        assert difference == pytest.approx(auc["A", *key] - auc["MPFM", *key])


def test_categories_of_one_size_are_drawn_apart():
    """The mean over many categories with the same scores is surer than each of them."""
    scores = trial_scores({"MPFM": 1.0, "A": 0.8}, classes=("dent",), numbers=(10,), n_seeds=1)
    categories = list("abcdefgh")
    scores = pd.concat([scores.assign(category=name, run=name) for name in categories])
    differences = paired_differences(scores, draws=100).set_index("category")
    width = differences["high"] - differences["low"]
    assert width["mean"] < 0.6 * width[categories].mean()


def test_pairing_narrows_the_interval():
    """What two methods share in a sample's score does not blur their difference."""
    scores = trial_scores({"MPFM": 1.0, "apart": 1.0}, classes=("dent",), numbers=(10,))
    rng = np.random.default_rng(1)
    own = scores[scores["method"] == "MPFM"]
    near = own.assign(method="near", score=own["score"] + 0.1 * rng.normal(size=len(own)))
    differences = paired_differences(pd.concat([scores, near], ignore_index=True), draws=200).set_index("method")
    width = differences["high"] - differences["low"]
    assert width["near"] < width["apart"] / 3


def test_a_method_is_compared_on_the_seeds_that_it_has():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5})
    few = scores[(scores["method"] == "MPFM") | (scores["seed"] != 1)]
    both = scores[scores["seed"] != 1]
    found, expected = (paired_differences(table, draws=20)["difference"] for table in (few, both))
    assert found.tolist() == expected.tolist()


def test_without_the_baseline_there_is_nothing_to_compare():
    assert paired_differences(trial_scores({"A": 1.0}), draws=5).empty
    assert paired_differences(trial_scores({"MPFM": 1.0}), draws=5).empty


def test_coverage():
    """Intervals of many experiments hold the true difference of means about as often as they say.

    Scores have a share of the sample and a share of the seed; the truth is zero, as both methods are made alike.
    """
    held = []
    for repeat in range(60):
        scores = trial_scores({"MPFM": 1.0, "A": 1.0}, classes=("dent",), numbers=(10,), n_seeds=5, rng_seed=repeat)
        rng = np.random.default_rng(1000 + repeat)
        for method in ("MPFM", "A"):
            own = scores["method"] == method
            of_sample = {sample: rng.normal() for sample in sorted(scores["sample"].unique())}
            of_seed = rng.normal(0, 0.3, 5)
            scores.loc[own, "score"] += scores["sample"][own].map(of_sample)
            scores.loc[own, "score"] += scores["label"][own] * of_seed[scores["seed"][own]]
        row = one(paired_differences(scores, draws=100), method="A")
        held.append(row["low"] <= 0 <= row["high"])
    assert np.mean(held) >= 0.88


def test_pieces_of_an_item_tell_no_more_than_the_item():
    scores = trial_scores({"MPFM": 1.0, "A": 0.7}, classes=("dent",), numbers=(10,))
    pieces = pd.concat([scores.assign(sample=scores["sample"] + f"/{i}") for i in range(4)], ignore_index=True)
    samples = pd.DataFrame({"sample_id": pieces["sample"].unique()})
    samples["item"] = samples["sample_id"].str.rsplit("/", n=1).str[0]
    alone, together, loose = (
        one(paired_differences(table, groups, draws=300), method="A")
        for table, groups in ((scores, None), (pieces, samples), (pieces, None))
    )
    assert together["difference"] == pytest.approx(alone["difference"])
    assert together["high"] - together["low"] == pytest.approx(alone["high"] - alone["low"], rel=1e-6)
    assert loose["high"] - loose["low"] < together["high"] - together["low"]


def test_an_item_has_one_weight_for_its_normal_and_its_anomalous_piece():
    """Each of ten items has a piece of either label: a draw weights the two alike, as scikit-learn would."""
    n, draws = 10, 200
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1], n)
    score = {name: np.tile(rng.normal(size=n), 2) + gain * label for name, gain in (("MPFM", 0.2), ("A", 0.1))}
    run = {"run": "r", "dataset": "synthetic", "category": "", "setting": "general", "known_class": "", "seed": 0}
    pieces = pd.DataFrame({"sample": [f"{i % n}-{i // n}" for i in range(2 * n)], "label": label, "n_anomalies": 1})
    scores = pd.concat([pieces.assign(**run, method=name, score=score[name]) for name in score], ignore_index=True)
    samples = pd.DataFrame({"sample_id": pieces["sample"], "item": pieces["sample"].str[0]})
    found = one(paired_differences(scores, samples, draws=draws))
    weights = np.tile(np.random.default_rng([0, 0]).multinomial(n, np.full(n, 1 / n), draws), 2)
    drawn = [[roc_auc_score(label, score[name], sample_weight=weight) for weight in weights] for name in ("A", "MPFM")]
    half = norm.ppf(0.975) * np.subtract(*drawn).std()
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half, rel=1e-5)


def test_draws_of_items_with_one_label_each_are_those_of_each_label():
    """The stream of random numbers: first the normals, then the anomalies, as in earlier releases."""
    scores = trial_scores({"MPFM": 1.0, "A": 0.5}, classes=("dent",), numbers=(10,), n_seeds=1)
    found = one(paired_differences(scores, draws=50))
    rng, aucs = np.random.default_rng([0, 0]), {}
    own = scores[scores["method"] == "A"].sort_values("sample")
    weights = {}
    for label in (0, 1):
        n = int((own["label"] == label).sum())
        weights |= dict(
            zip(own["sample"][own["label"] == label], rng.multinomial(n, np.full(n, 1 / n), 50).T, strict=True)
        )
    for method, part in scores.groupby("method"):
        of_draws = np.stack([weights[sample] for sample in part["sample"]], axis=1)
        aucs[method] = [roc_auc_score(part["label"], part["score"], sample_weight=weight) for weight in of_draws]
    half = norm.ppf(0.975) * np.subtract(aucs["A"], aucs["MPFM"]).std()
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half, rel=1e-5)
