"""A guaranteed false-alarm rate holds with the stated confidence, whatever the scores look like."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.thresholds import (
    choose_threshold,
    decide,
    describe_guarantee,
    item_scores,
    least_normals,
    least_rate,
    miss_rate,
    p_values,
)

RATES = st.floats(0.001, 0.5)
CONFIDENCES = st.floats(0.5, 0.999)
SCORES = st.lists(st.integers(-30, 30), min_size=1, max_size=200).map(lambda found: np.array(found) / 4)


@pytest.mark.parametrize(("rate", "n"), [(0.05, 59), (0.01, 299), (0.005, 598), (0.001, 2995)])
def test_least_number_of_normals(rate, n):
    assert least_normals(rate, 0.95) == n
    assert choose_threshold(np.arange(n), rate, 0.95).is_achievable
    assert not choose_threshold(np.arange(n - 1), rate, 0.95).is_achievable


@given(RATES, CONFIDENCES)
@settings(deadline=None)
def test_least_rate_and_least_number_are_inverse(rate, confidence):
    n = least_normals(rate, confidence)
    assert least_rate(n, confidence) <= rate * (1 + 1e-9)
    assert n == 1 or least_rate(n - 1, confidence) > rate * (1 - 1e-9)
    assert choose_threshold(np.arange(n), least_rate(n, confidence), confidence).is_achievable


@given(st.integers(1, 800), RATES, CONFIDENCES)
@settings(deadline=None)
def test_thresholds_are_the_order_statistics_of_the_beta_quantiles(n, rate, confidence):
    found = choose_threshold(np.arange(n), rate, confidence)
    k = np.arange(1, n + 1)
    safe = k[beta.ppf(confidence, k, n + 1 - k) <= rate * (1 + 1e-9)]
    doubtless = k[beta.ppf(1 - confidence, k, n + 1 - k) >= rate * (1 - 1e-9)]
    assert found.is_achievable == (len(safe) > 0)
    assert found.defective == n - max(safe, default=1)
    assert found.good == (n - doubtless[0] if len(doubtless) else None)
    assert found.rate_expected == max(safe, default=1) / (n + 1)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("n", "rate"), [(59, 0.05), (100, 0.1), (300, 0.01), (400, 0.05), (40, 0.01)])
def test_the_guarantee_holds_in_simulation(n, rate, tied):
    """The true rates are known: scores are uniform, or uniform and rounded to a grid, which makes ties."""
    rng, draws, confidence = np.random.default_rng([n, tied]), 2000, 0.95
    cells = 50
    above, at_or_above = np.empty(draws), np.empty(draws)
    for draw in range(draws):
        scores = rng.uniform(size=n)
        if tied:
            scores = np.floor(scores * cells)
        found = choose_threshold(scores, rate, confidence)
        assert found.good is not None
        if tied:  # P(S > t) and P(S ≥ t) of a normal to come
            above[draw], at_or_above[draw] = 1 - (found.defective + 1) / cells, 1 - found.good / cells
        else:
            above[draw], at_or_above[draw] = 1 - found.defective, 1 - found.good
    rate_guaranteed = found.rate_guaranteed
    least = binom.ppf(1e-6, draws, confidence) / draws  # what chance allows of 2,000 draws
    assert (above <= rate_guaranteed + 1e-9).mean() >= least
    assert (at_or_above >= rate - 1e-9).mean() >= least
    if not tied:  # no more careful than it must be: one more score above the threshold breaks the guarantee
        k = round(found.rate_expected * (n + 1))
        assert beta.cdf(rate_guaranteed, k + 1, n - k) < confidence
        assert above.mean() == pytest.approx(found.rate_expected, abs=0.01)


@pytest.mark.parametrize("correlation", [0.3, 0.9])
def test_the_guarantee_holds_for_items_of_one_to_ten_photos_and_images_as_items_break_it(correlation):
    """Photos of an item have correlated scores; the share of new photos, and of new items, above the threshold."""
    rng, rate, n_draws = np.random.default_rng(0), 0.05, 400

    def photos(n_items):
        items = np.repeat(np.arange(n_items), rng.integers(1, 11, n_items))
        noise = rng.normal(size=len(items))
        return items, np.sqrt(correlation) * rng.normal(size=n_items)[items] + np.sqrt(1 - correlation) * noise

    new_items, new = photos(20_000)
    largest = item_scores(new, new_items)
    false_alarms = []
    for _ in range(n_draws):
        items, scores = photos(100)
        observed = item_scores(scores, items), scores
        by_item, by_image = (choose_threshold(own, rate, 0.95).defective for own in observed)
        false_alarms.append([(largest > by_item).mean(), (new > by_item).mean()])
        false_alarms[-1].append((new > by_image).mean())
    broken = (np.array(false_alarms) > rate).sum(0)
    allowed = binom.ppf(0.999, n_draws, 0.05)
    assert (broken[:2] <= allowed).all() and broken[2] > allowed


@given(SCORES, RATES, CONFIDENCES, st.data())
@settings(deadline=None)
def test_an_item_is_its_largest_score(scores, rate, confidence, data):
    pieces = data.draw(st.lists(st.integers(0, len(scores) - 1), min_size=0, max_size=50))
    items = np.concatenate([np.arange(len(scores)), np.array(pieces, dtype=int)])
    lower = scores[items] - np.repeat([0.0, 1.0], [len(scores), len(pieces)])
    assert sorted(item_scores(lower, items)) == sorted(scores)
    names = [f"item {number}" for number in items]
    for named in (items, names):
        found = choose_threshold(item_scores(lower, named), rate, confidence)
        assert found == choose_threshold(scores, rate, confidence)


def test_decisions_at_the_thresholds():
    found = choose_threshold(np.arange(100.0), 0.1, 0.95)
    decisions = decide([found.good, found.good + 1e-9, found.defective, found.defective + 1e-9], found)
    assert decisions.tolist() == ["good", "uncertain", "uncertain", "defective"]


@given(SCORES.filter(lambda found: len(found) > 1))
@settings(deadline=None)
def test_p_values_of_exchangeable_scores_are_valid(scores):
    """Each score against all others, which is every split of n + 1 exchangeable scores: P(p ≤ a) ≤ a."""
    p = np.array([p_values(scores[[i]], np.delete(scores, i))[0] for i in range(len(scores))])
    for a in np.unique(p):
        assert (p <= a).mean() <= a + 1e-12


@given(SCORES, st.integers(-30, 30), CONFIDENCES)
@settings(deadline=None)
def test_miss_rate_is_scipy_s(scores, threshold, confidence):
    found = miss_rate(scores, threshold / 4, confidence)
    n_missed = sum(score <= threshold / 4 for score in scores)
    interval = binomtest(n_missed, len(scores)).proportion_ci(confidence, method="exact")
    assert (found.n_missed, found.n_anomalies) == (n_missed, len(scores))
    assert found.rate == n_missed / len(scores)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_sentences_state_the_guarantee_and_the_misses():
    kept = describe_guarantee(choose_threshold(np.arange(1000.0), 0.01, 0.95))
    assert "With 95 % confidence at most 1 % of future normal items are called defective" in kept
    assert "rests on 1,000 held-out normal items" in kept
    assert "cannot" not in kept
    few = describe_guarantee(choose_threshold(np.arange(100.0), 0.01, 0.95), [200.0, 1.0])
    assert few.startswith(
        "1 % cannot be guaranteed: 299 held-out normal items are needed. With 95 % confidence at most 2.95"
    )
    assert few.endswith("1 of 2 known defects are missed: 50 %, 95 % interval 1.26 % to 98.7 %.")
    items = describe_guarantee(choose_threshold(np.arange(100.0), 0.01, 0.95), [200.0, 1.0], n_images=12)
    assert "1 of 2 known defective items (12 images) are missed: 50 %, 95 % interval 1.26 % to 98.7 %." in items


def test_a_threshold_can_be_stored_as_strict_json():
    for found in (
        choose_threshold(np.arange(9), 0.3, 0.95),
        choose_threshold(np.arange(400, dtype=np.float32), 0.01, 0.95),
    ):
        assert json.loads(json.dumps(asdict(found), allow_nan=False)) == asdict(found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: choose_threshold([], 0.01, 0.95), "at least one"),
        (lambda: choose_threshold([1.0, np.nan], 0.01, 0.95), "1 of 2 scores of normals are not finite"),
        (lambda: choose_threshold([1.0, np.inf], 0.01, 0.95), "not finite"),
        (lambda: choose_threshold([1.0], 0.0, 0.95), "rate is 0.0; it must lie between 0 and 1"),
        (lambda: choose_threshold([1.0], 1.0, 0.95), "rate is 1.0"),
        (lambda: choose_threshold([1.0], np.nan, 0.95), "rate is nan"),
        (lambda: choose_threshold([1.0], 0.01, 95), "confidence is 95; it must be at least 0.5 and below 1"),
        (lambda: decide([np.nan], choose_threshold([1.0], 0.01, 0.95)), "no decision"),
        (lambda: p_values([np.nan], [1.0]), "no p-value"),
        (lambda: p_values([1.0], []), "at least one"),
        (lambda: miss_rate([], 0.5, 0.95), "scores of anomalies have shape"),
        (lambda: least_normals(-1, 0.95), "rate is -1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
