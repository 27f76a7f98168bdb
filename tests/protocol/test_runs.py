"""The run tables follow the protocol, and no test sample is ever among those that train."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.errors import InputError
from mpfm_kedro.protocol.runs import (
    make_general_runs,
    make_hard_runs,
    make_learning_runs,
    make_production_run,
    make_study_runs,
    records,
)
from mpfm_kedro.sources.repeats import joined_items
from protocol.small_tables import protocol, sample_table


def anomalies(samples: pd.DataFrame) -> list[str]:
    return sorted(samples["sample_id"][samples["split"] == "anomaly"])


def test_general_pool_of_ten_and_the_same_test_set_for_one_and_ten():
    samples = sample_table({"dent": 17, "hole": 14})
    runs = make_general_runs(samples, protocol([10, 1], 5))
    assert len(runs) == 10
    for seed, part in runs.groupby("seed"):
        shuffled = np.random.default_rng(seed).permutation(anomalies(samples)).tolist()
        ten, one = part.set_index("n_anomalies").loc[[10, 1]].to_dict("records")
        assert ten["known_anomalies"] == shuffled[:10]
        assert one["known_anomalies"] == shuffled[:1]
        assert ten["test_anomalies"] == one["test_anomalies"] == sorted(shuffled[10:])
    assert runs["known_anomalies"].map(tuple).nunique() == 10
    assert set(runs["known_class"]) == {""}
    assert set(runs["setting"]) == {"general"}


def test_normals_of_a_run_are_those_of_the_split():
    samples = sample_table({"dent": 30})
    for run in make_general_runs(samples, protocol(10, 2)).to_dict("records"):
        assert run["train_normals"] == [f"good/{i:03}" for i in range(6)]
        assert run["test_normals"] == ["good/t000", "good/t001"]


@pytest.mark.parametrize(("available", "pool"), [(19, 9), (12, 6), (3, 1), (2, 1)])
def test_small_pool_shrinks_to_half_with_a_warning(available, pool, caplog):
    with caplog.at_level(logging.WARNING):
        runs = make_general_runs(sample_table({"dent": available}), protocol([2, 1]))
    assert f"drawn from {pool} of them" in caplog.text
    assert set(runs["test_anomalies"].map(len)) == {available - pool}
    assert runs["known_anomalies"].map(len).max() == min(2, pool)
    assert runs["n_anomalies"].tolist() == runs["known_anomalies"].map(len).tolist()


@pytest.mark.parametrize(("available", "known"), [(7, 3), (3, 1)])
def test_fewer_defects_than_wanted_are_known_by_half_and_said_once(available, known, caplog):
    runs = make_general_runs(sample_table({"dent": available}), protocol([10, 9, 8], 2))
    assert set(runs["n_anomalies"]) == {known}
    assert set(runs["test_anomalies"].map(len)) == {available - known}
    assert caplog.messages == [
        f"synthetic has only {available} anomalies: known ones are drawn from {known} of them, the others are tested"
    ]


@pytest.mark.parametrize(("available", "said"), [(0, "has no anomalies"), (1, "has one anomaly, which is tested")])
def test_without_anomalies_to_learn_from_there_are_runs_of_normals(available, said, caplog):
    samples = sample_table({"dent": available} if available else {})
    runs = make_general_runs(samples, protocol([10, 1], 2))
    assert runs["run"].tolist() == ["M0-seed0", "M0-seed1"]
    assert set(runs["n_anomalies"]) == {0}
    assert runs["known_anomalies"].tolist() == [[], []]
    assert runs["test_anomalies"].tolist() == [anomalies(samples)] * 2
    assert len(caplog.messages) == 1 and said in caplog.text
    grouped = make_general_runs(with_items(samples, samples["sample_id"].tolist()), protocol(10, split_by_item=True))
    assert grouped["test_anomalies"].tolist() == [anomalies(samples)]


def test_all_of_a_small_known_class_are_known(caplog):
    runs = make_hard_runs(sample_table({"dent": 4, "hole": 12}), protocol([10, 5, 1], known_class="dent"))
    assert runs["n_anomalies"].tolist() == [4, 1]
    assert caplog.messages == ["class 'dent' of synthetic has only 4 anomalies, which are all known"]


def test_the_same_number_given_twice_gives_no_run_twice():
    samples = sample_table({"dent": 30, "hole": 30})
    assert make_general_runs(samples, protocol([10, 10], 2))["run"].is_unique
    assert make_hard_runs(samples, protocol([10, 10], 2))["run"].is_unique


def test_hard_test_set_has_every_class_but_the_known_one():
    samples = sample_table({"dent": 12, "hole": 10, "spot": 4})
    runs = make_hard_runs(samples, protocol([10, 1], 3))
    assert set(runs["known_class"]) == {"dent", "hole"}, "a class with fewer than ten samples is never the known one"
    assert len(runs) == 2 * 2 * 3
    for run in runs.to_dict("records"):
        own = [name for name in anomalies(samples) if name.startswith(run["known_class"])]
        drawn = np.random.default_rng(run["seed"]).permutation(own)[: run["n_anomalies"]].tolist()
        assert run["known_anomalies"] == drawn
        assert run["test_anomalies"] == [name for name in anomalies(samples) if name not in own]


def test_known_class_by_name_may_be_a_small_one():
    runs = make_hard_runs(sample_table({"dent": 12, "spot": 4}), protocol(3, 2, known_class="spot"))
    assert set(runs["known_class"]) == {"spot"}
    assert all(len(known) == 3 for known in runs["known_anomalies"])


def test_categories_have_their_own_runs(caplog):
    samples = pd.concat(
        [
            sample_table({"dent": 12, "hole": 12}, category="nut/"),
            sample_table({"dent": 12, "cut": 12}, category="tile/"),
            sample_table({"defective": 12}, category="brush/"),
        ]
    )
    runs = make_hard_runs(samples, protocol(5))
    assert sorted(zip(runs["category"], runs["known_class"], strict=True)) == [
        ("nut/", "dent"),
        ("nut/", "hole"),
        ("tile/", "cut"),
        ("tile/", "dent"),
    ]
    assert "Skipped: brush/ has 1 anomaly class" in caplog.text
    for run in runs.to_dict("records"):
        for column in ("train_normals", "known_anomalies", "test_normals", "test_anomalies"):
            assert all(name.startswith(run["category"]) for name in run[column])
    assert set(make_hard_runs(samples, protocol(5, known_class="cut"))["category"]) == {"tile/"}
    assert set(make_general_runs(samples, protocol(5))["category"]) == {"nut/", "tile/", "brush/"}
    assert runs["run"].is_unique
    assert not runs["run"].str.contains(r"[/\\ ]").any(), "a run's name is a file's name"


def test_several_categories_of_one_class_each_name_the_general_setting():
    samples = pd.concat([sample_table({"dent": 12}, category=category) for category in ("a/", "b/")])
    with pytest.raises(InputError, match="general_setting"):
        make_hard_runs(samples, protocol(1))


@pytest.mark.parametrize(
    ("make", "classes", "wanted", "parts"),
    [
        (make_hard_runs, {"dent": 12, "hole": 11}, protocol(12), ["n_anomalies", "12", "'hole'", "11"]),
        (make_hard_runs, {"dent": 12, "hole": 11}, protocol(1, known_class="dnet"), ["'dnet'", "dent, hole"]),
        (make_hard_runs, {"dent": 60, "hole": 2}, protocol(999, known_class="dent"), ["999", "60", "1 to 60 are"]),
        (make_hard_runs, {"dent": 9, "hole": 3}, protocol(1), ["known_class", "9"]),
        (make_hard_runs, {"dent": 12}, protocol(1), ["general_setting"]),
        (make_hard_runs, {}, protocol(1), ["general_setting"]),
        (make_general_runs, {"dent": 12}, protocol(13), ["n_anomalies", "13", "12", "1 to 10 are allowed"]),
        (make_general_runs, {"dent": 60}, protocol(999), ["n_anomalies", "999", "60", "1 to 30 are allowed"]),
        (make_general_runs, {}, protocol(999), ["n_anomalies", "999", "0 anomalies", "1 to 10 are allowed"]),
        (make_study_runs, {}, {"general": protocol(1)}, ["fewer than two", "general_setting"]),
        (make_study_runs, {"dent": 25}, {"hard": protocol(1)}, ["needs two"]),
    ],
)
def test_impossible_wishes_are_named(make, classes, wanted, parts):
    with pytest.raises(InputError) as raised:
        make(sample_table(classes), wanted)
    assert all(part in str(raised.value) for part in parts)


SIZES = st.dictionaries(st.sampled_from(["cut", "dent", "hole", "spot"]), st.integers(1, 30), min_size=2)


@given(classes=SIZES, wanted=st.lists(st.integers(1, 12), min_size=1, max_size=2), n_seeds=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_no_sample_both_trains_and_tests(classes, wanted, n_seeds):
    samples = sample_table(classes)
    made = []
    for make in (
        lambda: make_general_runs(samples, protocol(wanted, n_seeds)),
        lambda: make_hard_runs(samples, protocol(wanted, n_seeds)),
    ):
        try:
            made.append(make())
        except InputError:
            continue
    for run in (row for runs in made for row in runs.to_dict("records")):
        trains = run["train_normals"] + run["known_anomalies"]
        tests = run["test_normals"] + run["test_anomalies"]
        assert not set(trains) & set(tests)
        assert len(set(trains)) == len(trains)
        assert len(set(tests)) == len(tests)
        assert run["known_anomalies"] or sum(classes.values()) < 2
        assert run["test_anomalies"]
        if run["setting"] == "hard":
            assert all(name.startswith(run["known_class"]) for name in run["known_anomalies"])
            assert not any(name.startswith(run["known_class"]) for name in run["test_anomalies"])


def test_a_study_has_the_runs_of_both_settings_each_with_its_own_numbers():
    samples = sample_table({"dent": 25, "hole": 21})
    wanted = {"general": protocol([10, 1], 2, first_seed=3), "hard": protocol(5, 1)}
    runs = make_study_runs(samples, wanted)
    assert runs["run"].is_unique
    for setting, make in (("general", make_general_runs), ("hard", make_hard_runs)):
        own = runs[runs["setting"] == setting].reset_index(drop=True)
        expected = make(samples, wanted[setting])
        pd.testing.assert_frame_equal(own, expected.assign(run=f"{setting}-" + expected["run"]))
    assert set(make_study_runs(sample_table({"dent": 25}), wanted)["setting"]) == {"general"}


def with_items(samples: pd.DataFrame, groups: list[str], contents: list[str] | None = None) -> pd.DataFrame:
    named = samples.assign(item=groups, content_hash=contents or samples["sample_id"])
    return named.assign(item=joined_items(named))


def sides(run: dict, item_of: dict[str, str]) -> tuple[set[str], set[str]]:
    """The items that a run learns from, and those that it tests."""
    learned = run["train_normals"] + run["known_anomalies"]
    return {item_of[name] for name in learned}, {item_of[name] for name in run["test_normals"] + run["test_anomalies"]}


@given(
    classes=SIZES,
    wanted=st.lists(st.integers(1, 12), min_size=1, max_size=2, unique=True),
    n_items=st.integers(5, 200),
    n_contents=st.integers(100, 2000),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_no_item_is_on_both_sides_of_a_run_with_split_by_item(classes, wanted, n_items, n_contents, seed):
    samples = sample_table(classes, n_train=20, n_test=10)
    rng = np.random.default_rng(seed)
    groups = [f"item{number}" for number in rng.integers(0, n_items, len(samples))]
    contents = [str(number) for number in rng.integers(0, n_contents, len(samples))]
    samples = with_items(samples, groups, contents)
    for make in (
        lambda split: make_general_runs(samples, protocol(wanted, 2, split_by_item=split)),
        lambda split: make_hard_runs(samples, protocol(wanted, 2, split_by_item=split)),
    ):
        try:
            runs, plain = (records(make(split)) for split in (True, False))
        except InputError:
            continue
        for run, as_without in zip(runs, plain, strict=True):
            for names in (groups, contents):
                learned, tested = sides(run, dict(zip(samples["sample_id"], names, strict=True)))
                assert not learned & tested
            assert run["test_normals"]
            assert run["test_anomalies"]
            for column in ("run", "train_normals", "known_anomalies"):
                assert run[column] == as_without[column], "the draws are those without split_by_item"
            for column in ("test_normals", "test_anomalies"):
                assert set(run[column]) <= set(as_without[column])
        by_cell = pd.DataFrame(runs).groupby(["known_class", "seed"])
        if max(wanted) <= 10 and len(samples) - 30 >= 20:
            assert all(part["test_anomalies"].map(tuple).nunique() == 1 for _, part in by_cell), "the same for every M"


def test_split_by_item_excludes_tests_of_training_items_only():
    """Item a trains, b is tested, and c has a known anomaly, an anomaly and a normal."""
    samples = sample_table({"dent": 20, "hole": 20}, n_train=2, n_test=3)
    pool = np.random.default_rng(0).permutation(anomalies(samples))[:10]
    group = pd.Series(samples["sample_id"].tolist(), index=samples["sample_id"])
    group[["good/000", "good/001"]] = "a"
    group[["good/t000", "good/t001"]] = "b"
    tested = [name for name in anomalies(samples) if name not in pool]
    group[[tested[0], tested[1]]] = "a"
    group[[pool[9], tested[2], "good/t002"]] = "c"
    for n_anomalies in (10, 1):
        (run,) = records(
            make_general_runs(with_items(samples, group.tolist()), protocol(n_anomalies, split_by_item=True))
        )
        assert run["known_anomalies"] == pool[:n_anomalies].tolist()
        assert run["test_normals"] == ["good/t000", "good/t001"]
        assert run["test_anomalies"] == tested[3:]


@pytest.mark.parametrize("kind", ["test_normals", "test_anomalies"])
def test_nothing_to_test_with_split_by_item_is_an_error(kind):
    samples = sample_table({"dent": 12, "hole": 12})
    gone = samples["split"] == ("test" if kind == "test_normals" else "anomaly")
    groups = samples["sample_id"].where(~gone & (samples["sample_id"] != "good/000"), "one").tolist()
    for make in (make_general_runs, make_hard_runs):
        with pytest.raises(InputError, match=rf"split_by_item no sample remains for {kind}"):
            make(with_items(samples, groups), protocol(5, split_by_item=True))


def test_classes_whose_runs_would_have_one_name_are_refused():
    with pytest.raises(InputError, match="'a b', 'a_b'"):
        make_hard_runs(sample_table({"a b": 10, "a_b": 10}), protocol(3))
    assert "|" not in "".join(make_hard_runs(sample_table({"a|b": 10, "c": 10}), protocol(3))["run"])


def test_a_category_without_a_large_class_is_skipped_beside_others(caplog):
    samples = pd.concat(
        [sample_table({"dent": 12, "hole": 11}, category="a"), sample_table({"dent": 3, "hole": 3}, category="b")]
    )
    with caplog.at_level(logging.WARNING):
        runs = make_hard_runs(samples, protocol(3))
    assert set(runs["category"]) == {"a"}
    assert "Skipped: b" in caplog.text


def test_a_production_model_learns_from_all_and_a_category_is_one_model():
    samples = sample_table({"dent": 4, "hole": 3})
    samples.loc[0, "problem"] = "cannot be read"
    (run,) = records(make_production_run(samples, seed=7))
    assert run["train_normals"] == [f"good/{i:03}" for i in range(1, 6)]
    assert sorted(run["known_anomalies"]) == anomalies(samples)
    assert (run["run"], run["seed"], run["test_anomalies"]) == ("production", 7, [])
    two = pd.concat([sample_table({"dent": 4}, category=category) for category in ("a/", "b/")])
    with pytest.raises(InputError, match=r"--params=category=.*a/, b/"):
        make_production_run(two, seed=0)


def test_before_and_after_learning_are_tested_on_the_same_images_none_of_which_was_learned():
    samples = sample_table({"dent": 25}, n_train=6, n_test=4)
    before = make_general_runs(samples, protocol()).iloc[0]
    copied = [before["test_normals"][0], before["test_anomalies"][0]]  # what is learned shows the items of these
    learned = pd.DataFrame({"sample_id": ["new/a", "new/b"], "label": [0, 1], "item": copied})
    first, second = records(make_learning_runs(samples, learned, seed=0))
    assert [first["run"], second["run"]] == ["before", "after"]
    for kind, gone in zip(("test_normals", "test_anomalies"), copied, strict=True):
        assert first[kind] == second[kind] == [name for name in before[kind] if name != gone]
    assert (first["train_normals"], first["known_anomalies"]) == (before["train_normals"], before["known_anomalies"])
    assert second["train_normals"] == [*first["train_normals"], "new/a"]
    assert second["known_anomalies"] == [*first["known_anomalies"], "new/b"]
    assert (first["n_anomalies"], second["n_anomalies"]) == (10, 11)


def test_the_first_defect_is_learned_where_none_was_known():
    samples = sample_table({}, n_train=6, n_test=4)
    learned = pd.DataFrame({"sample_id": ["new"], "label": [1], "item": ["other"]})
    first, second = records(make_learning_runs(samples, learned, seed=0))
    assert (first["n_anomalies"], second["n_anomalies"]) == (0, 1)  # cells of their own: neither lacks a method
